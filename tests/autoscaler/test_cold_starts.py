"""What was measured of one variant says nothing of another."""

import pytest

from autoscaler.bounds import bounds_at
from autoscaler.capacity import cold_start_s, longest_cold_start_s
from autoscaler.policy import Variant
from autoscaler.pool import PoolState, VariantState
from autoscaler.schedule import Schedule
from autoscaler.shrink import LASTING_S, down_window_s
from tests.autoscaler.pools import policy

QUICK = Variant("quick", max_replicas=30, num_slots=10, tokens_per_s=100.0, cold_start_s=60.0)
SLOW = Variant("slow", max_replicas=30, num_slots=10, tokens_per_s=100.0, cold_start_s=60.0)
# Many quick starts: nine in ten of all that were measured, and more.
STARTS = (
    VariantState("quick", 20, (), cold_starts_s=(30.0,) * 40),
    VariantState("slow", 2, (), cold_starts_s=(420.0,) * 3),
)
NOON_S = 1_800_014_400.0  # of a day, in UTC


def test_each_variant_has_the_cold_start_that_was_measured_of_it() -> None:
    assert cold_start_s(QUICK, STARTS) == 30.0
    assert cold_start_s(SLOW, STARTS) == 420.0
    assert longest_cold_start_s((QUICK, SLOW), STARTS) == 420.0


def test_what_is_given_up_is_kept_for_the_slowest_variants_cold_start() -> None:
    state = PoolState(NOON_S, STARTS, None)
    assert down_window_s(state, policy(variants=(QUICK, SLOW))) == LASTING_S + 420.0
    hasty = policy(variants=(QUICK, SLOW), down_window_s=3.0)
    assert down_window_s(state, hasty) == 3.0 + 420.0


@pytest.mark.parametrize(("before_s", "floor"), [(430.0, 1), (410.0, 6)])
def test_a_schedule_is_ready_in_time_whichever_variant_it_orders(
    before_s: float, floor: int
) -> None:
    noon = Schedule("0 12 * * *", duration_s=3600, min_replicas=6, time_zone="UTC")
    rules = policy(variants=(QUICK, SLOW), schedules=(noon,))
    assert bounds_at(PoolState(NOON_S - before_s, STARTS, None), rules).floor == floor
