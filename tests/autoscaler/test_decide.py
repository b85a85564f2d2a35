"""Up when it lasts, down slowly, held when nothing is known, within bounds always."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decide import decide
from autoscaler.decision import Code, Memory
from autoscaler.errors import BadPolicy
from autoscaler.policy import PoolPolicy
from autoscaler.pool import (
    Demand,
    EngineLoad,
    Phase,
    PoolState,
    Replica,
    VariantState,
)
from tests.autoscaler.pools import POLICY, VARIANT, Scene, policy, replicas


def test_steady_demand_settles_and_stays() -> None:
    scene = Scene(ordered=1)
    scene.obey(4.0, num_looks=40)
    settled = scene.ordered
    counts = {scene.obey(4.0).num_wanted for _ in range(100)}
    assert counts == {settled}
    assert 5 <= settled <= 7  # four replicas' work, and room for chance


def test_one_odd_look_orders_nothing() -> None:
    scene = Scene(ordered=4)
    scene.obey(2.0, num_looks=50)
    before = scene.ordered
    for rate in (2.0, 15.0, 2.0, 2.0):
        assert scene.obey(rate).num_wanted == before


def test_a_step_is_ordered_on_its_second_look() -> None:
    scene = Scene(ordered=4)
    scene.obey(2.0, num_looks=50)
    assert Code.NOT_SUSTAINED in scene.look(12.0).codes
    scene.look(12.0)
    decision = scene.look(12.0)
    assert decision.num_wanted >= 12
    assert Code.DEMAND_UP in decision.codes


def test_long_streams_that_arrived_once_still_need_their_slots() -> None:
    scene = Scene(ordered=2)
    scene.obey(1.0, num_looks=50)
    over = replicas(scene.ordered, num_running=30)  # more than slots: the engines take them
    wanted = [scene.look(1.0, over).num_wanted for _ in range(3)]
    assert wanted[-1] >= 3 * scene.ordered


def test_a_deep_queue_needs_no_second_look() -> None:
    scene = Scene(ordered=2)
    scene.obey(1.0, num_looks=50)
    ready = scene.ordered
    decision = scene.look(12.0, num_queued=25 * ready)
    assert Code.BACKLOG in decision.codes
    assert decision.num_wanted > ready


def test_ordered_capacity_is_not_ordered_again_while_it_starts() -> None:
    scene = Scene(policy(max_replicas=64), ordered=2)
    scene.obey(1.0, num_looks=50)
    counts = []
    for _ in range(12):  # three minutes in which nothing becomes ready
        decision = scene.look(10.0, replicas(2, num_running=10, starting=scene.ordered - 2))
        scene.ordered = decision.num_wanted
        counts.append(decision.num_wanted)
    assert max(counts) == counts[1]


def test_ordered_capacity_is_not_ordered_again_before_it_is_seen() -> None:
    scene = Scene(policy(max_replicas=64), ordered=2)
    scene.obey(1.0, num_looks=50)
    counts = []
    for _ in range(12):  # the cluster has written the count, and made nothing yet
        decision = scene.look(10.0, replicas(2, num_running=10))
        scene.ordered = decision.num_wanted
        counts.append(decision.num_wanted)
    assert max(counts) == counts[1] > 2
    said: set[Code] = set()
    for _ in range(30):  # longer than a cold start: it is said, and more of it would not help
        decision = scene.look(10.0, replicas(2, num_running=10))
        assert decision.num_wanted <= counts[1]
        said |= decision.codes
        scene.ordered = decision.num_wanted
    assert Code.UNSEEN in said


def test_capacity_that_never_came_is_taken_back_when_it_is_not_needed() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=50)
    count = scene.ordered
    scene.ordered = count + 5
    there = replicas(count, num_running=8)
    wanted = [scene.look(3.0, there).num_wanted for _ in range(16)]
    assert wanted[-1] == count


def test_down_waits_for_the_window_and_goes_in_steps() -> None:
    scene = Scene(ordered=4)
    scene.obey(12.0, num_looks=60)
    high = scene.ordered
    counts = [scene.obey(1.0).num_wanted for _ in range(120)]
    assert counts[:16] == [high] * 16  # a cold start and a minute
    steps = [a - b for a, b in itertools.pairwise(counts) if a != b]
    assert all(0 < step <= high // 2 for step in steps)
    assert counts[-1] <= 3


def test_survivors_must_hold_what_is_in_flight() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=60)
    for _ in range(100):  # few arrive, but long answers keep the slots
        decision = scene.look(0.2, num_in_flight=39)
    assert decision.num_wanted == scene.ordered
    assert Code.SURVIVORS_HOLD in decision.codes


def test_unknown_demand_holds_and_the_window_does_not_age() -> None:
    scene = Scene(ordered=4)
    scene.obey(12.0, num_looks=60)
    high = scene.ordered
    for _ in range(80):  # twenty minutes
        assert scene.obey(None).num_wanted == high
    assert Code.UNKNOWN_DEMAND in scene.look(None).codes
    assert [scene.obey(1.0).num_wanted for _ in range(16)] == [high] * 16


def test_unknown_demand_still_keeps_the_floor() -> None:
    scene = Scene(policy(min_replicas=3), ordered=1)
    decision = scene.look(None)
    assert decision.num_wanted == 3
    assert Code.FLOOR in decision.codes


def test_a_new_process_holds_until_it_knows_a_window() -> None:
    scene = Scene(ordered=20)
    assert [scene.obey(1.0).num_wanted for _ in range(15)] == [20] * 15
    assert Code.WINDOW_HOLDS in scene.last.codes  # type: ignore[union-attr]


def test_silent_replicas_stop_the_way_down_and_not_the_way_up() -> None:
    scene = Scene(ordered=12)
    scene.obey(8.0, num_looks=50)
    count = scene.ordered
    for _ in range(60):
        decision = scene.look(1.0, replicas(count, num_running=1, num_unknown=count // 2))
        assert decision.num_wanted == count
    assert Code.UNKNOWN_REPLICAS in decision.codes
    for _ in range(3):
        decision = scene.look(25.0, replicas(count, num_running=10, num_unknown=count // 2))
    assert decision.num_wanted > count


def test_pending_for_want_of_gpus_is_said_and_not_ordered_twice() -> None:
    scene = Scene(ordered=10)
    scene.obey(6.0, num_looks=5)
    for _ in range(20):
        decision = scene.look(20.0, replicas(6, num_running=10, unschedulable=4))
        assert decision.num_wanted == 10
    assert Code.UNSCHEDULABLE in decision.codes


def test_pending_for_want_of_gpus_goes_first_and_at_once() -> None:
    scene = Scene(ordered=6)
    scene.obey(3.0, num_looks=50)
    count = scene.ordered
    scene.ordered = count + 4
    assert scene.look(3.0, replicas(count, num_running=8, unschedulable=4)).num_wanted == count


def test_replicas_that_never_start_are_not_capacity_and_not_multiplied() -> None:
    scene = Scene(ordered=3)
    for _ in range(20):
        decision = scene.look(10.0, replicas(0, stuck=3), num_queued=100)
        assert decision.num_wanted == 3
    assert Code.STUCK in decision.codes


def test_a_stuck_one_among_healthy_ones_is_replaced_once() -> None:
    scene = Scene(ordered=6)
    scene.obey(4.0, num_looks=50)
    healthy = scene.ordered
    scene.ordered = healthy + 1
    short = replicas(healthy - 1, num_running=8, stuck=2)
    wanted = max(scene.look(4.0, short).num_wanted for _ in range(4))
    assert wanted == healthy + 2
    scene.ordered = wanted
    replaced = replicas(healthy - 1, num_running=8, stuck=2, starting=1)
    assert {scene.look(4.0, replaced).num_wanted for _ in range(6)} <= {healthy, healthy + 2}


def test_surge_pods_of_a_rollout_are_not_capacity() -> None:
    scene = Scene(ordered=6)
    scene.obey(4.0, num_looks=50)
    count = scene.ordered
    assert all(
        scene.look(4.0, replicas(count + 2, num_running=6)).num_wanted == count for _ in range(60)
    )


def test_zero_needs_permission_idleness_and_nothing_in_flight() -> None:
    sleepy = policy(min_replicas=0, is_told_by_gateway=True)
    scene = Scene(sleepy, ordered=1)
    for _ in range(200):
        assert scene.look(0.0, num_in_flight=1).num_wanted == 1
    assert Scene(ordered=1).obey(0.0, num_looks=300).num_wanted == 1
    counts = [scene.obey(0.0).num_wanted for _ in range(120)]
    assert counts[:59] == [1] * 59  # fifteen minutes without a request
    assert counts[-1] == 0


def test_zero_waits_for_a_replica_that_does_not_tell() -> None:
    scene = Scene(policy(min_replicas=0, is_told_by_gateway=True, max_unknown_ratio=1.0), ordered=1)
    silent = replicas(1, num_unknown=1)
    assert all(scene.look(0.0, silent).num_wanted == 1 for _ in range(200))


def test_the_first_request_wakes_a_pool_at_zero() -> None:
    scene = Scene(policy(min_replicas=0, is_told_by_gateway=True), ordered=0)
    scene.obey(0.0, num_looks=100)
    assert scene.ordered == 0
    decision = scene.look(0.07, (), num_queued=1, num_in_flight=1)
    assert decision.num_wanted >= 1
    assert Code.WOKEN in decision.codes


def test_an_outage_at_zero_neither_wakes_nor_breaks() -> None:
    scene = Scene(policy(min_replicas=0, is_told_by_gateway=True), ordered=0)
    assert [scene.obey(None).num_wanted for _ in range(20)] == [0] * 20


def test_a_persons_count_is_respected_for_a_while_and_bounds_are_not_negotiable() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=60)
    written = scene.ordered
    scene.ordered = 12
    held = [scene.look(3.0, num_written=written) for _ in range(58)]
    assert {d.num_wanted for d in held} == {12}
    left_s = [r.figures["left_s"] for d in held for r in d.reasons if r.code is Code.MANUAL]
    assert (left_s[0], left_s[-1]) == (900.0, 900.0 - 57 * 15.0), "each look tells how long still"
    assert scene.look(3.0, num_written=written).codes >= {Code.MANUAL}
    later = [scene.look(3.0, num_written=written).num_wanted for _ in range(4)]
    assert min(later) < 12
    scene.ordered = 99
    assert scene.look(3.0, num_written=written).num_wanted == 32


def test_capacity_that_was_planned_too_low_is_learned() -> None:
    scene = Scene(ordered=4)
    fast = EngineLoad(5, 0, 0.2, tokens_per_s=200.0)
    for _ in range(200):
        scene.look(3.0, tuple(Replica(f"r{i}", Phase.READY, fast) for i in range(4)))
    assert scene.memory.tokens_per_s["h200"] == pytest.approx(200.0, rel=0.05)


@pytest.mark.parametrize(("shown", "kept"), [(1e9, 300.0), (0.0, 100.0 / 3)], ids=["up", "down"])
def test_a_broken_meter_is_bounded(shown: float, kept: float) -> None:
    scene = Scene(ordered=4)
    full = EngineLoad(10, 5, 0.99, tokens_per_s=shown)
    for _ in range(400):
        scene.look(3.0, tuple(Replica(f"r{i}", Phase.READY, full) for i in range(4)))
    assert scene.memory.tokens_per_s["h200"] == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"min_replicas": 5, "max_replicas": 4},
        {"min_replicas": 0},
        {"urgency": 1.5},
        {"target_usage": 0.0},
        {"min_replicas": 100, "max_replicas": 100},
        {"variants": ()},
        {"variants": (VARIANT, VARIANT)},
    ],
    ids=["bounds", "never woken", "ratio", "usage", "quota", "none", "names"],
)
def test_a_policy_that_cannot_be_is_refused_with_its_figure(changes: dict[str, object]) -> None:
    with pytest.raises(BadPolicy, match="chat"):
        policy(**changes)


phases = st.sampled_from(list(Phase))
loads = st.none() | st.builds(
    EngineLoad,
    st.integers(0, 20),
    st.integers(0, 200),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e6),
)
demands = st.none() | st.builds(
    Demand,
    st.floats(0.1, 1000),
    st.integers(0, 100_000),
    st.integers(0, 10_000),
    st.floats(0, 1e9),
    st.floats(0, 1e4),
)
rules = st.builds(
    lambda low, high, urgency, headroom: policy(
        min_replicas=min(low, high),
        max_replicas=high,
        urgency=urgency,
        headroom_replicas=headroom,
        is_told_by_gateway=True,
    ),
    st.integers(0, 8),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(
    rules,
    st.lists(
        st.tuples(st.lists(st.tuples(phases, loads), max_size=12), demands, st.integers(0, 50)),
        min_size=1,
        max_size=8,
    ),
)
def test_any_history_stays_within_the_bounds_and_repeats_itself(
    rules_: PoolPolicy, looks: list[tuple[list[tuple[Phase, EngineLoad]], Demand | None, int]]
) -> None:
    memory, again = Memory(), Memory()
    for i, (found, demand, ordered) in enumerate(looks):
        pods = tuple(Replica(f"r{j}", phase, load) for j, (phase, load) in enumerate(found))
        variant = VariantState("h200", ordered, pods)
        state = PoolState(15.0 * i, (variant,), demand)
        decision, twin = decide(state, rules_, memory), decide(state, rules_, again)
        assert decision == twin
        assert rules_.min_replicas <= decision.num_wanted <= rules_.max_replicas
        assert decision.reasons
        if demand is None:
            clamped = min(max(variant.num_kept, rules_.min_replicas), rules_.max_replicas)
            assert decision.num_wanted == clamped
        memory, again = decision.memory, twin.memory


def test_the_shipped_policy_is_the_one_that_is_tested() -> None:
    assert POLICY.target_usage == PoolPolicy.__dataclass_fields__["target_usage"].default
