"""Histograms by their labels, so many of them and one for all the others."""

from collections.abc import Sequence
from typing import Final

from gateway.histogram import Histogram

_MAX_SERIES: Final = 200

Labels = tuple[tuple[str, str | bool], ...]

# https://opentelemetry.io/docs/specs/otel/metrics/sdk/#overflow-attribute
_OVERFLOW: Final[Labels] = (("otel.metric.overflow", True),)


class Histograms:
    def __init__(self, name: str, unit: str, bounds: Sequence[float]) -> None:
        self.name, self.unit, self.bounds = name, unit, bounds
        self.by_labels: dict[Labels, Histogram] = {}

    def of(self, labels: Labels) -> Histogram:
        """Made when it is first asked for: ask when there is something to observe."""
        if labels not in self.by_labels and len(self.by_labels) >= _MAX_SERIES:
            labels = _OVERFLOW
        return self.by_labels.setdefault(labels, Histogram(self.bounds))
