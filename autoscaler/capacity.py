"""What one replica can do: planned at first, learned from replicas at work, within bounds.

A replica with all slots taken, or with requests waiting, shows what it can do.  One with room only
shows that it can do at least as much.  Bounds around the plan keep a broken meter from ordering
a hundred replicas, or none.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Final

from autoscaler.policy import Variant
from autoscaler.pool import EngineLoad, Phase, VariantState

LEARN_TIME_S: Final = 600.0
MAX_RATIO: Final = 3.0  # of the plan, up and down: a plan that is further off is a wrong plan
FULL_KV_USAGE: Final = 0.95
MIN_COLD_STARTS: Final = 3
COLD_START_QUANTILE: Final = 0.9


def next_tokens_per_s(
    known: float, variant: Variant, state: VariantState, interval_s: float
) -> float:
    """Another look at the replicas: the estimate moves to what full ones do."""
    loads = [r.load for r in state.replicas if r.phase is Phase.READY and r.load is not None]
    full = [rate for load in loads if (rate := _rate_when_full(load, variant)) is not None]
    shown = median(full) if full else max([known, *_proven(loads)])
    weight = 1.0 - math.exp(-interval_s / LEARN_TIME_S)
    return within_bounds(known + weight * (shown - known), variant)


def remembered(told: Mapping[str, float], variants: Iterable[Variant]) -> Mapping[str, float]:
    """Of what was once learned, by variant, that which can be believed."""
    return {
        variant.name: within_bounds(told[variant.name], variant)
        for variant in variants
        if variant.name in told and math.isfinite(told[variant.name]) and told[variant.name] > 0
    }


def within_bounds(tokens_per_s: float, variant: Variant) -> float:
    planned = variant.tokens_per_s
    return min(max(tokens_per_s, planned / MAX_RATIO), planned * MAX_RATIO)


def cold_start_s(variant: Variant, states: Iterable[VariantState]) -> float:
    """The 90th percentile of what was measured of it; the plan until there is enough of that.

    Not of others: many quick starts of one variant say nothing of another's slow ones.
    """
    own = (state for state in states if state.name == variant.name)
    measured = sorted(s for state in own for s in state.cold_starts_s)
    if len(measured) < MIN_COLD_STARTS:
        return max([variant.cold_start_s, *measured])
    return measured[min(len(measured) - 1, int(COLD_START_QUANTILE * len(measured)))]


def longest_cold_start_s(variants: Iterable[Variant], states: Collection[VariantState]) -> float:
    return max(cold_start_s(variant, states) for variant in variants)


def _rate_when_full(load: EngineLoad, variant: Variant) -> float | None:
    is_full = load.num_running >= variant.num_slots or load.kv_cache_usage >= FULL_KV_USAGE
    return load.tokens_per_s if is_full and load.num_waiting > 0 else None


def _proven(loads: Iterable[EngineLoad]) -> list[float]:
    """One that has room and does this much can do at least this much."""
    done = [load.tokens_per_s for load in loads if load.tokens_per_s is not None]
    return [median(done)] if done else []
