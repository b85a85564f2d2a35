"""What is expected: a trend that is followed, and not believed beyond measure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecast import MAX_GROWTH_RATIO, Trend, chance_per_s, next_trend
from autoscaler.pool import Demand


def look(num_arrived: int, interval_s: float = 15.0) -> Demand:
    return Demand(interval_s, num_arrived, 0, 0.0, 0.0)


def after(counts: list[int], interval_s: float = 15.0) -> Trend:
    trend: Trend | None = None
    for count in counts:
        trend = next_trend(trend, look(count, interval_s))
    assert trend is not None
    return trend


def test_constant_demand_has_no_trend() -> None:
    trend = after([60] * 40)
    assert trend.ahead_per_s(600.0) == pytest.approx(4.0)


def test_a_ramp_is_seen_ahead() -> None:
    trend = after([60 + 3 * i for i in range(40)])  # 0.0133 a second more each second
    now = (60 + 3 * 39) / 15
    assert trend.ahead_per_s(180.0) == pytest.approx(now + 180 * 3 / 15 / 15, rel=0.1)


def test_a_step_is_a_new_level_and_not_a_trend() -> None:
    trend = after([30] * 20 + [180])
    assert trend.level_per_s == pytest.approx(12.0)
    assert trend.growth_per_s2 == 0.0


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.floats(0, 3600))
def test_no_history_is_trusted_beyond_its_bound(counts: list[int], horizon_s: float) -> None:
    trend = after(counts)
    assert 0 <= trend.ahead_per_s(horizon_s) <= MAX_GROWTH_RATIO * max(0.0, trend.level_per_s)


def test_irregular_looks_weigh_by_their_time() -> None:
    often = after([4] * 60, interval_s=1.0)
    seldom = after([4] * 60 + [80, 80], interval_s=1.0)
    assert seldom.level_per_s > often.level_per_s


def test_chance_of_nothing_is_nothing() -> None:
    assert chance_per_s(0.0, window_s=20.0, num_sigmas=1.0) == 0.0
    assert chance_per_s(4.0, window_s=16.0, num_sigmas=2.0) == pytest.approx(2**0.5)
