"""What is on its way: what it will have done by when, and that it is not taken back too soon."""

import pytest

from autoscaler.arriving import longest_wait_s, noted, work_within
from autoscaler.decision import Memory
from autoscaler.pool import PoolState, Replica, VariantState
from tests.autoscaler.pools import NUM_SLOTS, POLICY, TICK_S, TOKENS_PER_S, Scene, replicas

RATES = {"h200": TOKENS_PER_S}
COLD_START_S = 180.0  # of the variant


def state_at(now_s: float, found: tuple[Replica, ...]) -> PoolState:
    return PoolState(now_s, (VariantState("h200", len(found), found),), None)


def test_what_is_on_its_way_does_its_part_from_when_it_is_ready() -> None:
    state = state_at(1_000.0, replicas(2, starting=1))
    memory = noted(state, Memory())
    later = state_at(1_100.0, replicas(2, starting=3))
    memory = noted(later, memory)
    assert longest_wait_s(later, POLICY, memory) == COLD_START_S
    of_ready, of_old, of_new = 2 * 200.0, 200.0 - 80.0, 2 * (200.0 - 180.0)
    expected = TOKENS_PER_S * (of_ready + of_old + of_new)
    assert work_within(200.0, later, POLICY, memory, RATES) == pytest.approx(expected)
    assert work_within(50.0, later, POLICY, memory, RATES) == pytest.approx(2 * 50 * TOKENS_PER_S)


def test_the_oldest_comes_first_and_what_is_overdue_may_come_any_moment() -> None:
    memory = noted(state_at(0.0, replicas(1, starting=1)), Memory())
    memory = noted(state_at(100.0, replicas(1, starting=2)), memory)
    one_came = state_at(180.0, replicas(2, starting=1))
    memory = noted(one_came, memory)
    assert longest_wait_s(one_came, POLICY, memory) == 100.0
    overdue = state_at(900.0, replicas(2, starting=1))
    assert longest_wait_s(overdue, POLICY, noted(overdue, memory)) == 0.0
    assert longest_wait_s(overdue, POLICY, noted(state_at(900.0, replicas(3)), memory)) == 0.0


def stepped(
    scene: Scene, num_looks: int, *, rate_per_s: float, queued_per_look: float
) -> list[int]:
    """Looks at four ready replicas with all slots taken, the rest of the order on its way."""
    wanted = []
    for look in range(num_looks):
        found = replicas(4, num_running=NUM_SLOTS, starting=scene.ordered - 4)
        decision = scene.look(
            rate_per_s, found, num_queued=round(look * queued_per_look), num_in_flight=40
        )
        scene.ordered = decision.num_wanted
        wanted.append(scene.ordered)
    return wanted


def test_what_was_ordered_for_a_backlog_stays_ordered_until_it_is_there() -> None:
    """Once ordered it seems to have cleared the backlog already.  It comes in three minutes."""
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=40)
    scene.ordered = 4
    wanted = stepped(scene, 11, rate_per_s=12.0, queued_per_look=8 * TICK_S)
    most = max(wanted)
    assert most > 20, "twelve a second need fourteen, and what gathers more"
    assert wanted[-1] == most, wanted


def test_what_was_ordered_goes_when_demand_has_gone() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=40)
    scene.ordered = 4
    most = max(stepped(scene, 3, rate_per_s=12.0, queued_per_look=8 * TICK_S))
    wanted = stepped(scene, 12, rate_per_s=1.0, queued_per_look=0.0)
    assert wanted[-1] < most / 2
