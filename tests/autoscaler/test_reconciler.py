"""The loop over a cluster that answers late, and over a process that dies anywhere."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoscaler.cluster import Address
from autoscaler.decision import Code
from autoscaler.engine_metrics import EngineSample
from autoscaler.errors import BadPolicy
from autoscaler.observe import GatewaySample, GatewaySamples
from autoscaler.plan import SetCount
from autoscaler.policy import PoolPolicy
from autoscaler.reconciler import Reconciler, Report, Rules, Sources
from tests.autoscaler.fake_cluster import Crash, FakeCluster
from tests.autoscaler.pools import TICK_S, policy

QUICK = policy(down_window_s=15.0, down_interval_s=15.0)  # with the cold start: ten ticks


class Leader:
    leads = True

    def may_act(self) -> bool:
        return self.leads


class World:
    """A cluster, its engines' counters, a clock and one reconciler, replaced when it crashes."""

    def __init__(self, cluster: FakeCluster, pool: PoolPolicy = QUICK, **rules: bool) -> None:
        self.cluster = cluster
        self.leader = Leader()
        self.now_s = 1_800_000_000.0
        self.is_blind = False
        self.silent: set[str] = set()
        self.num_refused = 0  # by the gateway, for want of a replica
        self._finished: dict[str, float] = {}
        self._rules = Rules(pool, drain_deadline_s=600.0, **rules)
        self.reports: list[Report] = []
        self.reconciler = self._started()

    async def tick(self, rate_per_s: float) -> Report | None:
        """``None``: the process has died, and a new one is there."""
        self.now_s += TICK_S
        self.cluster.turn()
        self.cluster.serve(round(rate_per_s * 10))
        takers = [p for p in self.cluster.pods if p.cordoned_at_s is None]
        self.num_refused += 0 if takers else round(rate_per_s * TICK_S)
        for pod in takers:
            share = rate_per_s * TICK_S / len(takers)
            self._finished[pod.name] = self._finished.get(pod.name, 0.0) + share
        try:
            return await self.reconciler.tick()
        except Crash:
            self.reconciler = self._started()
            return None

    async def ticks(self, rate_per_s: float, count: int) -> None:
        for _ in range(count):
            await self.tick(rate_per_s)

    def _started(self) -> Reconciler:
        return Reconciler(
            self._rules,
            self.cluster,
            sources=Sources(
                self._scrape, self._asked if self._rules.policy.is_told_by_gateway else None
            ),
            clock=lambda: self.now_s,
            fence=self.leader,
            report=self.reports.append,
        )

    async def _asked(self) -> GatewaySamples:
        return {"g": GatewaySample(self.num_refused, 0)}

    async def _scrape(self, found: Mapping[str, Address]) -> Mapping[str, EngineSample | None]:
        if self.is_blind:
            return dict.fromkeys(found)
        in_flight = {pod.name: pod.num_in_flight for pod in self.cluster.pods}
        return {
            name: EngineSample(
                in_flight[name], 0, 0.2, 0.0, 100 * self._finished.get(name, 0.0),
                self._finished.get(name, 0.0), {},
            )
            for name in found
            if name not in self.silent
        }  # fmt: skip


async def test_up_with_demand_and_down_by_draining_only_empty_replicas() -> None:
    world = World(FakeCluster(2))
    await world.ticks(1.0, 20)
    await world.ticks(8.0, 40)
    high = world.cluster.count
    assert high >= 8
    await world.ticks(0.5, 80)
    assert world.cluster.count <= 2
    assert len(world.cluster.deleted) >= high - 2
    cordons = [w for w in world.cluster.writes if w.startswith("cordon")]
    assert len(cordons) == len(set(cordons))


@pytest.mark.parametrize("write", range(12))
async def test_a_crash_before_any_write_ends_where_no_crash_ends(write: int) -> None:
    world = World(FakeCluster(8))
    await world.ticks(6.0, 30)
    busy: list[int] = []
    world.cluster.crash_before_write = write
    for _ in range(120):
        before = len(world.cluster.deleted)
        await world.tick(0.5)
        busy += [pod.num_in_flight for pod in world.cluster.deleted[before:]]
    assert world.cluster.crash_before_write is None, "the crash has happened"
    assert world.cluster.count == len(world.cluster.pods) <= 2
    assert set(busy) == {0}
    assert not any(pod.released_to for pod in world.cluster.pods)


async def test_a_drain_is_undone_when_the_cluster_deletes_another_one() -> None:
    world = World(FakeCluster(8))
    await world.ticks(6.0, 30)
    await world.ticks(3.0, 2)
    world.cluster.picks = lambda pods: next(p for p in pods if p.released_to is None)
    for _ in range(60):
        await world.tick(3.0)
    assert any(w.startswith("uncordon") for w in world.cluster.writes)
    assert all(pod.cordoned_at_s is None for pod in world.cluster.pods)


async def test_demand_that_returns_undoes_drains_before_it_orders() -> None:
    world = World(FakeCluster(6))
    await world.ticks(4.0, 30)
    for pod in world.cluster.pods:
        pod.num_in_flight = 9
    while not any(pod.cordoned_at_s for pod in world.cluster.pods):
        await world.tick(1.5)
    world.cluster.writes.clear()
    await world.ticks(9.0, 3)
    first_count = next((i for i, w in enumerate(world.cluster.writes) if "count" in w), 99)
    first_undo = next((i for i, w in enumerate(world.cluster.writes) if "uncordon" in w), 99)
    assert first_undo < first_count


async def test_a_conflict_or_a_dry_run_or_a_lost_lease_acts_on_nothing() -> None:
    conflicting, dry = World(FakeCluster(2)), World(FakeCluster(2), is_dry_run=True)
    conflicting.cluster.conflict = "HorizontalPodAutoscaler/chat"
    fenced = World(FakeCluster(2))
    fenced.leader.leads = False
    for world in (conflicting, dry, fenced):
        await world.ticks(1.0, 5)
        await world.ticks(9.0, 10)
        assert world.cluster.writes == []
        report = world.reports[-1]
        assert report.planned != ()
        assert report.done == ()
    assert conflicting.reports[-1].conflict == "HorizontalPodAutoscaler/chat"
    assert fenced.reports[-1].refused == "another process leads"


async def test_a_count_that_was_written_meanwhile_is_not_overwritten() -> None:
    world = World(FakeCluster(2))
    await world.ticks(1.0, 5)
    world.cluster.is_meddled_with = True
    reports = [await world.tick(9.0) for _ in range(4)]
    refused = [r for r in reports if r is not None and r.refused is not None]
    assert refused
    assert "count is" in refused[0].refused  # type: ignore[operator]
    assert not any(isinstance(a, SetCount) for a in refused[0].done)


async def test_one_that_drains_and_has_fallen_silent_stops_no_growth_and_its_deadline_ends_it() -> (
    None
):
    world = World(FakeCluster(6))
    await world.ticks(4.0, 30)
    for pod in world.cluster.pods:
        pod.num_in_flight = 9
    while not any(pod.cordoned_at_s for pod in world.cluster.pods):
        await world.tick(1.5)
    silent = {pod.name for pod in world.cluster.pods if pod.cordoned_at_s}
    world.silent = world.cluster.deaf = silent
    before = world.cluster.count
    await world.ticks(9.0, 6)
    assert world.cluster.count > before
    world.cluster.deaf = set()
    await world.ticks(9.0, 45)
    assert not silent & {pod.name for pod in world.cluster.pods}
    assert world.cluster.count >= 9


async def test_a_count_does_not_go_down_past_a_release_that_was_refused() -> None:
    world = World(FakeCluster(6))
    await world.ticks(4.0, 30)
    world.cluster.deaf = {pod.name for pod in world.cluster.pods}
    before = world.cluster.count
    for pod in world.cluster.pods[:2]:
        pod.cordoned_at_s = world.now_s
    await world.ticks(0.5, 20)
    assert world.cluster.count == before
    refused = [report.refused for report in world.reports if report.refused is not None]
    assert "does not answer" in refused[-1]


async def test_a_persons_count_is_held_for_a_while() -> None:
    world = World(FakeCluster(2))
    await world.ticks(1.0, 5)
    await world.ticks(6.0, 6)
    world.cluster.count = 20
    report = await world.tick(6.0)
    assert report is not None
    assert Code.MANUAL in report.decision.codes
    await world.ticks(6.0, 30)
    assert world.cluster.count == 20


async def test_no_engine_tells_and_nothing_moves() -> None:
    world = World(FakeCluster(4))
    await world.ticks(3.0, 30)
    count, num_writes = world.cluster.count, len(world.cluster.writes)
    world.is_blind = True
    await world.ticks(3.0, 60)
    assert world.cluster.count == count
    assert len(world.cluster.writes) == num_writes


async def test_a_count_whose_answer_was_lost_is_ours_and_not_a_persons() -> None:
    world = World(FakeCluster(2))
    await world.ticks(1.0, 5)
    await world.ticks(4.0, 8)
    written = world.cluster.count
    assert written > 2
    world.cluster.loses_answers = True
    await world.ticks(25.0, 4)
    assert world.cluster.count > written
    world.cluster.loses_answers = False
    await world.ticks(25.0, 10)
    assert not any(Code.MANUAL in report.decision.codes for report in world.reports)
    assert world.cluster.count >= 25


async def test_a_count_that_could_not_be_written_is_no_persons_either() -> None:
    world = World(FakeCluster(2))
    await world.ticks(1.0, 5)
    await world.ticks(4.0, 8)
    written = world.cluster.count
    assert written > 2
    world.cluster.is_read_only = True
    await world.ticks(25.0, 4)
    assert world.cluster.count == written
    world.cluster.is_read_only = False
    await world.ticks(25.0, 4)
    assert not any(Code.MANUAL in report.decision.codes for report in world.reports)
    assert world.cluster.count > written


async def test_what_was_not_done_is_not_remembered_as_done() -> None:
    slow = replace(QUICK, down_interval_s=60.0)
    dry = World(FakeCluster(12), slow, is_dry_run=True)
    await dry.ticks(1.0, 40)
    codes = [report.decision.codes for report in dry.reports[-10:]]
    assert all(Code.DEMAND_DOWN in found for found in codes), "no step down was made to wait after"
    assert not any(Code.INTERVAL_HOLDS in found for found in codes)


async def test_a_pool_at_zero_is_woken_by_what_the_gateway_refused() -> None:
    world = World(FakeCluster(0), replace(QUICK, min_replicas=0, is_told_by_gateway=True))
    await world.ticks(0.0, 4)
    assert world.cluster.count == 0
    await world.ticks(0.1, 1)
    assert world.cluster.count == 1


def test_a_policy_that_counts_on_a_gateway_needs_one() -> None:
    world = World(FakeCluster(1))
    with pytest.raises(BadPolicy, match="no gateway is asked"):
        Reconciler(
            Rules(replace(QUICK, is_told_by_gateway=True)),
            world.cluster,
            sources=Sources(world._scrape),
            clock=lambda: 0.0,
            fence=world.leader,
            report=world.reports.append,
        )
