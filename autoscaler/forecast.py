"""Demand ahead: a level with a trend, how far the trend is trusted, and what chance may add.

Source: Holt, double exponential smoothing, with time constants instead of factors so that
irregular looks weigh by the time they cover.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from autoscaler.lengths import Lengths, next_lengths
from autoscaler.pool import Demand

LEVEL_TIME_S: Final = 35.0
TREND_TIME_S: Final = 120.0
SURPRISE_SIGMAS: Final = 4.0  # chance alone brings it once in a year of looks
GROWTH_SIGMAS: Final = 0.3  # of a trend, that are taken for chance
MAX_GROWTH_RATIO: Final = 3.0  # a trend is not believed beyond this multiple of what is


@dataclass(frozen=True, slots=True)
class Trend:
    """Of requests a second, and of the work in one."""

    level_per_s: float
    growth_per_s2: float = 0.0
    lengths: Lengths = field(default_factory=Lengths)

    def ahead_per_s(self, horizon_s: float) -> float:
        """Not below nothing, and not beyond what a trend is trusted for."""
        grown = self.level_per_s + self._proven_growth_per_s2 * horizon_s
        return min(max(0.0, grown), MAX_GROWTH_RATIO * self.level_per_s)

    @property
    def _proven_growth_per_s2(self) -> float:
        """Less what chance alone makes of a level over the time that a trend looks at."""
        noise = GROWTH_SIGMAS * math.sqrt(max(0.0, self.level_per_s) / (2 * LEVEL_TIME_S))
        proven = max(0.0, abs(self.growth_per_s2) - noise / TREND_TIME_S)
        return math.copysign(proven, self.growth_per_s2)


def next_trend(trend: Trend | None, demand: Demand) -> Trend:
    """A count far outside chance is a new level at once, and no trend that overshoots."""
    rate = demand.num_arrived / demand.interval_s
    if trend is None:
        return Trend(rate, lengths=next_lengths(Lengths(), demand))
    expected = max(0.0, trend.level_per_s + trend.growth_per_s2 * demand.interval_s)
    lengths = next_lengths(trend.lengths, demand)
    if _is_surprise(demand, expected):
        return Trend(rate, 0.0, lengths)
    level = expected + _weight(demand.interval_s, LEVEL_TIME_S) * (rate - expected)
    slope = (level - trend.level_per_s) / demand.interval_s
    growth = trend.growth_per_s2 + _weight(demand.interval_s, TREND_TIME_S) * (
        slope - trend.growth_per_s2
    )
    return Trend(level, growth, lengths)


def chance_per_s(rate_per_s: float, *, window_s: float, num_sigmas: float) -> float:
    """What may come above the rate in a window that long, in requests of the mean length.

    A Poisson process of requests whose lengths vary as an exponential's do: twice the variance.
    """
    return num_sigmas * math.sqrt(2 * rate_per_s / window_s) if window_s > 0 else 0.0


def _is_surprise(demand: Demand, expected_per_s: float) -> bool:
    expected = expected_per_s * demand.interval_s
    sigma = math.sqrt(max(expected, 1.0))
    return abs(demand.num_arrived - expected) > SURPRISE_SIGMAS * sigma


def _weight(interval_s: float, time_s: float) -> float:
    return 1.0 - math.exp(-interval_s / time_s)
