"""Histograms by their labels, so many of them and no more."""

from bisect import bisect_left
from typing import Final

_MAX_SERIES: Final = 200

Labels = tuple[tuple[str, str], ...]


class Series:
    __slots__ = ("counts", "total")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * num_buckets
        self.total = 0.0


class Histograms:
    def __init__(self, name: str, unit: str, bounds: tuple[float, ...]) -> None:
        self.name, self.unit, self.bounds = name, unit, bounds
        self.by_labels: dict[Labels, Series] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Beyond the bound a new series is not begun: what there is goes on."""
        series = self.by_labels.get(labels)
        if series is None:
            if len(self.by_labels) >= _MAX_SERIES:
                return
            series = self.by_labels[labels] = Series(len(self.bounds) + 1)
        series.counts[bisect_left(self.bounds, value)] += 1
        series.total += value
