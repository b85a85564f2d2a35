"""Least squares, one observation at a time, old ones fading: recursive least squares.

Each observation counts by its relative error, so that a guess for something small is as good, in
percent, as one for something large.  Haykin, Adaptive Filter Theory, chapter 10.
"""

from collections.abc import Sequence
from typing import Final

_MEMORY: Final = 0.99  # an observation has a weight of a third after a hundred others
_FIRST_VARIANCE: Final = 100.0  # a guess of the first seconds is soon outweighed
_MAX_VARIANCE: Final = 1e4  # without news in some direction the filter forgets what it knew
_LEAST_SHARE: Final = 0.5  # of what was predicted: less than that is a surprise, not a lesson


class Regression:
    """``y = sum(weight * feature)``.  Features should be of the order of one."""

    def __init__(self, first_weights: Sequence[float]) -> None:
        size = len(first_weights)
        self.weights = list(first_weights)
        self.num_seen = 0
        self._variances = [
            [_FIRST_VARIANCE if row == column else 0.0 for column in range(size)]
            for row in range(size)
        ]

    def predict(self, features: Sequence[float]) -> float:
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    def learn(self, features: Sequence[float], value: float) -> None:
        """``value`` is positive."""
        scale = max(value, _LEAST_SHARE * self.predict(features))
        x = [feature / scale for feature in features]
        spread = [sum(p * xi for p, xi in zip(row, x, strict=True)) for row in self._variances]
        total = _MEMORY + sum(s * xi for s, xi in zip(spread, x, strict=True))
        error = value / scale - sum(w * xi for w, xi in zip(self.weights, x, strict=True))
        gains = [s / total for s in spread]
        self.weights = [w + gain * error for w, gain in zip(self.weights, gains, strict=True)]
        shrunk = [
            [p - gain * s for p, s in zip(row, spread, strict=True)]
            for row, gain in zip(self._variances, gains, strict=True)
        ]
        largest = max(shrunk[i][i] for i in range(len(x)))
        growth = 1.0 / _MEMORY if largest < _MAX_VARIANCE else 1.0
        self._variances = [[p * growth for p in row] for row in shrunk]
        self.num_seen += 1
