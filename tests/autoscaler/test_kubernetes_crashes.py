"""The loop over Kubernetes' habits, and a process that dies between any two of its writes."""

from collections.abc import Mapping
from contextlib import suppress

import pytest

from autoscaler.cluster import Address
from autoscaler.engine_metrics import EngineSample
from autoscaler.errors import ClusterRefused
from autoscaler.kubernetes.cluster import Home
from autoscaler.kubernetes.pool_loop import PoolLoop
from autoscaler.kubernetes.wire import Json
from autoscaler.observe import GatewaySample, GatewaySamples
from autoscaler.reconciler import AskGateway, Report, Sources
from tests.autoscaler.fake_cluster import Crash
from tests.autoscaler.fake_kubernetes import NAMESPACE, FakeKubernetes
from tests.autoscaler.pools import TICK_S

VARIANT: Json = {
    "name": "h200", "target": {"name": "chat"}, "maxReplicas": 12, "slots": 10,
    "tokensPerSecond": 100, "coldStartSeconds": 30,
}  # fmt: skip
SPEC: Json = {
    "variants": [VARIANT], "minReplicas": 1, "maxReplicas": 12,
    "downWindowSeconds": 15, "downIntervalSeconds": 15,
}  # fmt: skip


class Term:
    """A process's leadership; each process has a token of its own."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.leads = True

    def may_act(self) -> bool:
        return self.leads


class World:
    def __init__(self, kubernetes: FakeKubernetes, ask: AskGateway | None = None) -> None:
        self.kubernetes = kubernetes
        self._ask = ask
        self.now_s = 1_800_000_000.0
        self._finished: dict[str, float] = {}
        self._num_processes = 0
        self.term = Term("")
        self.loop = self.started()

    def started(self) -> PoolLoop:
        self._num_processes += 1
        self.term = Term(f"process-{self._num_processes}/1")
        home = Home(
            self.kubernetes, NAMESPACE, self.term, self.kubernetes, self.kubernetes,
            lambda: [self.kubernetes.pool], lambda: self.now_s,
        )  # fmt: skip
        return PoolLoop(
            home, "chat", events=self.kubernetes, sources=lambda _: Sources(self._scrape, self._ask)
        )

    async def tick(self, rate_per_s: float) -> Report | None:
        """``None``: the process has died, and a new one is there."""
        self.now_s += TICK_S
        self.kubernetes.turn(round(rate_per_s * 10))
        serving = [n for n, count in self.kubernetes.in_flight.items() if count > 0]
        for name in serving:
            share = rate_per_s * TICK_S / len(serving)
            self._finished[name] = self._finished.get(name, 0.0) + share
        try:
            return await self.loop.tick(self.kubernetes.pool)
        except Crash:
            self.loop = self.started()
            return None

    async def ticks(self, rate_per_s: float, count: int) -> None:
        for _ in range(count):
            await self.tick(rate_per_s)

    async def _scrape(self, found: Mapping[str, Address]) -> Mapping[str, EngineSample | None]:
        return {
            name: EngineSample(
                self.kubernetes.in_flight.get(name, 0), 0, 0.2, 0.0,
                100 * self._finished.get(name, 0.0), self._finished.get(name, 0.0), {},
            )
            for name in found
        }  # fmt: skip


def live(kubernetes: FakeKubernetes) -> list[str]:
    return [n for n, p in kubernetes.pods.items() if p["status"]["phase"] != "Succeeded"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", range(14))
async def test_a_crash_at_any_write_ends_where_no_crash_ends(write: int, when: str) -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    setattr(kubernetes, f"crash_{when}_write", write)
    await world.ticks(6.0, 30)
    high = kubernetes.count
    assert 7 <= high <= 12
    setattr(kubernetes, f"crash_{when}_write", write)
    await world.ticks(0.5, 60)
    assert kubernetes.crash_before_write is kubernetes.crash_after_write is None
    assert kubernetes.count == len(live(kubernetes)) <= 2
    assert kubernetes.cut == []
    assert not kubernetes.cordoned & set(live(kubernetes)), "nobody is left out of work"


@pytest.mark.parametrize(
    ("told", "begins_with"), [(250, 250), (1e300, 300), (0.001, 100 / 3), (0, 100), (-7, 100)]
)
async def test_what_was_learned_outlives_a_restart_within_bounds(
    told: float, begins_with: float
) -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    kubernetes.status = {"variants": [{"name": "h200", "tokensPerSecond": told}, {"name": "gone"}]}
    world = World(kubernetes)
    for _ in range(2):
        await world.ticks(1.0, 3)
        (found,) = kubernetes.status["variants"]
        assert found.get("tokensPerSecond", 100) == pytest.approx(begins_with, rel=0.1)
        world.loop = world.started()


async def test_measured_cold_starts_outlive_a_restart_and_broken_notes_do_not() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    noted = [90.0, 1e300, -1.0, *[120.0] * 19]
    kubernetes.status = {"variants": [{"name": "h200", "coldStartsSeconds": noted}]}
    world = World(kubernetes)
    for _ in range(2):
        report = await world.tick(1.0)
        assert report is not None
        assert report.state.variants[0].cold_starts_s == (90.0, *[120.0] * 19)
        assert kubernetes.status["variants"][0]["coldStartsSeconds"] == [90.0, *[120.0] * 19]
        world.loop = world.started()
    await world.ticks(6.0, 10)
    assert kubernetes.count > 2
    newest = kubernetes.status["variants"][0]["coldStartsSeconds"]
    assert newest[-1] == 0.0, "this cluster's pods are ready as soon as they are placed"
    assert len(newest) == 20


async def test_an_order_that_was_not_written_is_no_persons() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    for _ in range(10):
        kubernetes.crash_before_write = 1  # the note is written, and the count is not
        if "writing" not in kubernetes.status["orders"].get("h200", {}):
            await world.tick(8.0)
    kubernetes.crash_before_write = None
    assert kubernetes.status["orders"]["h200"]["writing"] > kubernetes.count
    report = await world.tick(8.0)
    assert report is not None
    assert "manual" not in {code.value for code in report.decision.codes}


async def test_a_count_whose_version_alone_was_overtaken_is_written_again() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    kubernetes.num_stale = 3
    await world.ticks(6.0, 6)
    assert kubernetes.num_stale == 0
    assert kubernetes.count > 2


async def test_a_count_that_is_overtaken_for_ever_is_left_to_the_next_look() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    kubernetes.num_stale = 10_000
    reports = [await world.tick(6.0) for _ in range(6)]
    refused = [r.refused for r in reports if r is not None and r.refused is not None]
    assert refused
    assert "overtaken 4 times" in refused[0]
    assert kubernetes.count == 2


async def test_a_leader_that_was_held_up_finds_another_name_and_stops() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    old, old_term = world.loop, world.term
    world.loop = world.started()
    await world.ticks(1.0, 2)
    assert kubernetes.status["decidedBy"] == world.term.token
    assert old_term.may_act(), "it has not looked at the clock since"
    writes = len([w for w in kubernetes.writes if w.endswith("/scale")])
    world.loop = old
    for _ in range(5):
        with pytest.raises(ClusterRefused, match="has led since"):
            await world.tick(8.0)
    assert len([w for w in kubernetes.writes if w.endswith("/scale")]) == writes


async def test_a_pool_that_is_deleted_and_made_again_is_scaled_again() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    kubernetes.remake_pool()
    await world.ticks(6.0, 6)
    assert kubernetes.count > 2


async def test_who_does_not_lead_writes_nothing_and_knows_the_demand_when_its_turn_comes() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    world.term.leads = False
    await world.ticks(6.0, 6)
    assert kubernetes.writes == []
    world.term.leads = True
    await world.ticks(6.0, 1)
    assert kubernetes.count > 2, "no window has to be waited for"


async def test_gpus_that_are_not_there_are_ordered_once_and_given_back_first() -> None:
    kubernetes = FakeKubernetes(SPEC, 2, num_gpus=4)
    world = World(kubernetes)
    await world.ticks(8.0, 40)
    assert kubernetes.count <= 12
    assert kubernetes.status["variants"][0]["unschedulable"] > 0
    await world.ticks(2.0, 8)
    assert kubernetes.status["variants"][0]["unschedulable"] == 0
    assert kubernetes.cut == []


async def test_a_resource_that_makes_no_sense_is_told_so_and_nothing_is_done() -> None:
    kubernetes = FakeKubernetes({**SPEC, "minReplicas": 13}, 2)
    world = World(kubernetes)
    assert await world.tick(6.0) is None
    (valid,) = [c for c in kubernetes.status["conditions"] if c["type"] == "Valid"]
    assert (valid["status"], valid["reason"]) == ("False", "BadPolicy")
    assert "min_replicas" in valid["message"]
    kubernetes.spec = SPEC
    await world.ticks(6.0, 4)
    assert kubernetes.count > 2


async def test_a_changed_resource_keeps_what_was_learned() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(6.0, 10)
    before = kubernetes.count
    kubernetes.spec = {**SPEC, "maxReplicas": 11}
    report = await world.tick(6.0)
    assert report is not None
    assert report.state.demand is not None
    assert kubernetes.count == before


async def test_a_count_that_was_written_is_an_event_though_the_status_is_refused() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    kubernetes.refuses_reports = True
    for _ in range(6):
        with suppress(ClusterRefused):
            await world.tick(6.0)
    assert kubernetes.count > 2
    told = [event["note"] for event in kubernetes.events]
    assert any(note.startswith("h200: 2 -> ") for note in told)
    assert f"-> {kubernetes.count}:" in told[-1]


async def test_the_notes_of_a_variant_that_left_the_spec_leave_too() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    kubernetes.status = {"orders": {"h100": {"written": 3}}}
    world = World(kubernetes)
    await world.ticks(1.0, 4)
    assert kubernetes.status["orders"] == {"h200": {"written": 2}}


async def test_a_person_is_seen_before_the_first_own_order_too() -> None:
    kubernetes = FakeKubernetes(SPEC, 2)
    world = World(kubernetes)
    await world.ticks(1.5, 4)
    assert kubernetes.count == 2
    assert kubernetes.status["orders"] == {"h200": {"written": 2}}
    kubernetes.count = 5
    report = await world.tick(1.5)
    assert report is not None
    assert "manual" in {code.value for code in report.decision.codes}
    assert kubernetes.count == 5


async def test_a_pool_at_zero_is_woken_by_who_asks_at_the_gateway() -> None:
    asked = 0

    async def ask() -> GatewaySamples:
        return {"g": GatewaySample(asked, 0)}

    spec = {**SPEC, "minReplicas": 0, "gateway": {"labelSelector": "app=gateway"}}
    kubernetes = FakeKubernetes(spec, 0)
    world = World(kubernetes, ask)
    await world.ticks(0.0, 4)
    assert kubernetes.count == 0
    asked = 1
    await world.ticks(0.0, 1)
    assert kubernetes.count == 1
