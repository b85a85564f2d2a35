"""Pick the least cost; by chance where several are equal, or the first of them gets all."""

from collections.abc import Callable, Sequence


class LeastCost:
    name = "least_cost"

    def __init__(self, random: Callable[[], float]) -> None:
        """``random``: from 0 to below 1."""
        self._random = random

    def pick(self, costs: Sequence[float]) -> int:
        least = min(costs)
        num_least = costs.count(least)
        index = costs.index(least)
        if num_least > 1:
            for _ in range(int(self._random() * num_least)):
                index = costs.index(least, index + 1)
        return index
