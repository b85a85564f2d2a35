"""The quantile of a stream of numbers, followed in constant time and memory.

Robbins and Monro (1951): each number that is above moves the guess up, each below moves it down,
in the proportion in which they should occur.  Steps are relative, and shrink to a floor, so the
guess settles yet never stops following.
"""

import math
from array import array
from typing import Final

_LEAST_STEP: Final = 0.02  # relative: the guess sways by about this much for ever
_GREATEST_STEP: Final = 0.7


class QuantileTable:
    """Many guesses, each with how many numbers it has seen."""

    def __init__(self, size: int, quantile: float) -> None:
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"quantile must be between 0 and 1, got {quantile}")
        self._up = quantile
        self._down = 1.0 - quantile
        self._guesses = array("d", bytes(8 * size))
        self._counts = array("L", bytes(array("L").itemsize * size))

    def guess(self, index: int) -> float | None:
        """``None``: nothing has been seen."""
        return self._guesses[index] if self._counts[index] else None

    def num_seen(self, index: int) -> int:
        return self._counts[index]

    def forget(self, index: int) -> None:
        self._counts[index] = 0

    def observe(self, index: int, value: float, first_guess: float) -> None:
        """``value`` and ``first_guess`` are positive; the latter stands until it is outvoted."""
        count = self._counts[index]
        guess = self._guesses[index] if count else first_guess
        step = max(_LEAST_STEP, _GREATEST_STEP / math.sqrt(1 + count))
        if value > guess:
            guess *= 1.0 + step * self._up
        else:
            guess *= 1.0 - step * self._down
        self._guesses[index] = guess
        self._counts[index] = count + 1
