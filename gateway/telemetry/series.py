"""Histograms by their labels, so many of them and one for all the others."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

_MAX_SERIES: Final = 200

Labels = tuple[tuple[str, str | bool], ...]

# https://opentelemetry.io/docs/specs/otel/metrics/sdk/#overflow-attribute
_OVERFLOW: Final[Labels] = (("otel.metric.overflow", True),)


class Series:
    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, values: Sequence[float]) -> None:
        bounds, counts = self._bounds, self.counts
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


class Histograms:
    def __init__(self, name: str, unit: str, bounds: Sequence[float]) -> None:
        self.name, self.unit, self.bounds = name, unit, bounds
        self.by_labels: dict[Labels, Series] = {}

    def of(self, labels: Labels) -> Series:
        """Made when it is first asked for: ask when there is something to observe."""
        if labels not in self.by_labels and len(self.by_labels) >= _MAX_SERIES:
            labels = _OVERFLOW
        return self.by_labels.setdefault(labels, Series(self.bounds))
