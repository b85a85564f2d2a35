"""A histogram that is told of many values at a time."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # of values up to each bound, and above the last
        self.total = 0.0  # of all values

    def observe(self, values: Sequence[float]) -> None:
        bounds, counts = self.bounds, self.counts
        self.total += sum(values)
        if len(values) < len(bounds):
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            return
        in_order, num_below = sorted(values), 0  # half the work, where there are many
        for place, bound in enumerate(bounds):
            num_up_to = bisect_right(in_order, bound)
            counts[place] += num_up_to - num_below
            num_below = num_up_to
        counts[-1] += len(in_order) - num_below
