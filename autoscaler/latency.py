"""A percentile of what happened between two looks at a histogram (pure)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, finite_count, normal_name
from autoscaler.pool import TimeToFirstToken

Buckets = Mapping[float, float]  # upper bound -> cumulative count since the engine's start

QUANTILE: Final = 0.95


def buckets_of(families: Families, name: str) -> Buckets:
    """Of all label sets together.  Raises SourceFailed."""
    found: dict[float, float] = {}
    for sample in families.get(f"{normal_name(name)}_bucket", ()):
        bound = _bound(name, sample.labels.get("le", ""))
        found[bound] = found.get(bound, 0.0) + finite_count(name, sample.value)
    return found


def _bound(name: str, text: str) -> float:
    try:
        bound = float(text)
    except ValueError as exc:
        raise SourceFailed(f"{name}: a bucket's bound that is no number") from exc
    if math.isnan(bound):
        raise SourceFailed(f"{name}: a bucket's bound that is no number")
    return bound


def grown(before: Buckets, after: Buckets) -> Buckets:
    """What came between; empty after a restart, which is when a count went down."""
    between = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    return {} if any(count < 0 for count in between.values()) else between


def summed(many: Iterable[Buckets]) -> Buckets:
    found: dict[float, float] = {}
    for buckets in many:
        for bound, count in buckets.items():
            found[bound] = found.get(bound, 0.0) + count
    return found


def p95(buckets: Buckets) -> TimeToFirstToken | None:
    """Interpolated in its bucket; above the last finite bound that bound.  ``None``: no sample."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    total = buckets[bounds[-1]]
    rank = QUANTILE * total
    index = next(i for i, bound in enumerate(bounds) if buckets[bound] >= rank)
    return TimeToFirstToken(_interpolated(buckets, bounds, index, rank), int(total))


def _interpolated(buckets: Buckets, bounds: Sequence[float], index: int, rank: float) -> float:
    low = bounds[index - 1] if index > 0 else 0.0
    high = bounds[index]
    if high == float("inf"):
        return low
    below = buckets[low] if index > 0 else 0.0
    inside = buckets[high] - below
    return low + (high - low) * (rank - below) / inside if inside > 0 else high
