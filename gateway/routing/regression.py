"""Least squares without weights below zero, one observation at a time, old ones fading.

What costs time never saves any.  Where features grow together, and observations cannot tell them
apart, an unbounded fit trades one weight below zero for another far above: right for what was seen,
and wrong by any factor for what comes.  The sums of all observations are kept, and each new one
moves every weight once towards its best, given the others (coordinate descent; Franc, Hlavac and
Navara 2005, "Sequential coordinate-wise algorithm for the non-negative least squares problem").

Each observation counts by its relative error, so that a guess for something small is as good, in
percent, as one for something large.
"""

from collections.abc import Sequence
from typing import Final

_MEMORY: Final = 0.99  # an observation has a weight of a third after a hundred others
_LEAST_SHARE: Final = 0.5  # of what was predicted: less than that is a surprise, not a lesson
_INERTIA: Final = 1e-6  # of a weight of which nothing was seen


class Regression:
    """``y = sum(weight * feature)``, all of them at least 0.

    Features should be of the order of one.
    """

    def __init__(self, first_weights: Sequence[float]) -> None:
        """A guess counts as one observation of that feature alone; zero: there is none."""
        size = len(first_weights)
        self.weights = list(first_weights)
        self.num_seen = 0
        self._products = [[0.0] * size for _ in first_weights]  # of features, summed
        self._targets = [0.0] * size  # of features and values
        for place, weight in enumerate(first_weights):
            if weight > 0.0:
                self._products[place][place] = 1.0 / weight**2
                self._targets[place] = 1.0 / weight

    def predict(self, features: Sequence[float]) -> float:
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    def learn(self, features: Sequence[float], value: float) -> None:
        """``value`` is positive."""
        scale = max(value, _LEAST_SHARE * self.predict(features))
        y, x = value / scale, [feature / scale for feature in features]
        for xi, row in zip(x, self._products, strict=True):
            row[:] = [_MEMORY * product + xi * xj for product, xj in zip(row, x, strict=True)]
        targets = zip(self._targets, x, strict=True)
        self._targets = [_MEMORY * target + xi * y for target, xi in targets]
        self._descend()
        self.num_seen += 1

    def _descend(self) -> None:
        weights = self.weights
        for place, (row, target) in enumerate(zip(self._products, self._targets, strict=True)):
            slope = target - sum(p * w for p, w in zip(row, weights, strict=True))
            weights[place] = max(0.0, weights[place] + slope / (row[place] + _INERTIA))
