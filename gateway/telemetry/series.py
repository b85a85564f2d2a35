"""Histograms by their labels, so many of them and one for all the others."""

from bisect import bisect_left
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
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)


class Histograms:
    def __init__(self, name: str, unit: str, bounds: Sequence[float]) -> None:
        self.name, self.unit, self.bounds = name, unit, bounds
        self.by_labels: dict[Labels, Series] = {}

    def of(self, labels: Labels) -> Series:
        """Made when it is first asked for: ask when there is something to observe."""
        if labels not in self.by_labels and len(self.by_labels) >= _MAX_SERIES:
            labels = _OVERFLOW
        return self.by_labels.setdefault(labels, Series(self.bounds))
