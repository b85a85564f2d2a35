"""How many tokens one model makes of a byte: what is typical, how much it varies, what is safe.

For each kind of prompt a moving mean and mean deviation of the ratio's logarithm; an estimate is so
many deviations above the mean as it takes to be too low no more often than asked (the number is
followed by Robbins and Monro's rule, 1951).  So a kind is known after a handful of prompts, and the
whole keeps its promise whatever the distribution.  Constant time and memory.
"""

import math
from array import array
from typing import Final

_ENOUGH: Final = 5  # prompts of a kind
_LEAST_SHARE: Final = 1 / 64  # of the newest in the means: how fast they follow a change
_LEAST_DEVIATION: Final = 0.02
_LEAST_SURPRISE: Final = 0.3
_FIRST_DEVIATIONS: Final = 3.0
_MOST_DEVIATIONS: Final = 12.0
_STEP: Final = 0.1  # of the number of deviations


class Ratios:
    def __init__(self, num_kinds: int, quantile: float) -> None:
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"quantile must be between 0 and 1, got {quantile}")
        self._quantile = quantile
        self._means = array("d", bytes(8 * num_kinds))
        self._deviations = array("d", bytes(8 * num_kinds))
        self._counts = array("d", bytes(8 * num_kinds))
        self._num_deviations = _FIRST_DEVIATIONS

    def high(self, kind: int) -> float | None:
        """Above which no more than asked of them lie; ``None``: too few have been seen."""
        if self._counts[kind] < _ENOUGH:
            return None
        return math.exp(self._means[kind] + self._num_deviations * self._deviations[kind])

    def typical(self, kind: int) -> float | None:
        """What they have in the middle; ``None``: too few have been seen."""
        return math.exp(self._means[kind]) if self._counts[kind] >= _ENOUGH else None

    def learn(self, kind: int, ratio: float, estimated: float) -> None:
        """``ratio`` is positive; ``estimated``: what stood for it."""
        logarithm, count = math.log(ratio), self._counts[kind]
        share = max(_LEAST_SHARE, 1.0 / (1.0 + count))
        error = logarithm - self._means[kind]
        if count >= _ENOUGH:  # one odd prompt moves little, however odd it is
            most = max(_LEAST_SURPRISE, 3.0 * self._deviations[kind])
            error = min(most, max(-most, error))
        self._means[kind] += share * error
        if count:  # the first has nothing to deviate from
            deviation = max(_LEAST_DEVIATION, abs(error))
            self._deviations[kind] += max(share, 1.0 / count if count < 2 else 0.0) * (
                deviation - self._deviations[kind]
            )
        self._counts[kind] = count + 1.0
        if count >= _ENOUGH:
            self._follow(is_too_low=ratio > estimated)

    def _follow(self, *, is_too_low: bool) -> None:
        step = _STEP * (self._quantile if is_too_low else self._quantile - 1.0)
        self._num_deviations = min(_MOST_DEVIATIONS, max(0.0, self._num_deviations + step))
