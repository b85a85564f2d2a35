"""Histograms by their labels, so many of them and no more."""

from bisect import bisect_left
from typing import Final

_MAX_SERIES: Final = 200

Labels = tuple[tuple[str, str], ...]


class Series:
    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histograms:
    def __init__(self, name: str, unit: str, bounds: tuple[float, ...]) -> None:
        self.name, self.unit, self.bounds = name, unit, bounds
        self.by_labels: dict[Labels, Series] = {}

    def of(self, labels: Labels) -> Series:
        """Beyond the bound one that nobody is told of: what there is goes on."""
        series = self.by_labels.get(labels)
        if series is None:
            series = Series(self.bounds)
            if len(self.by_labels) < _MAX_SERIES:
                self.by_labels[labels] = series
        return series
