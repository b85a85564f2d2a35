"""Replicas that were ordered and that nobody has seen yet: on their way, for a cold start (pure).

A cluster makes them a moment after the count is written, or late, or, for want of a quota, never.
Were they nothing, every look would order them again; were they capacity for ever, none would be.
"""

from dataclasses import replace

from autoscaler.capacity import cold_start_s
from autoscaler.decision import Memory, Unseen
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState, VariantState


def awaited(state: PoolState, policy: PoolPolicy, memory: Memory) -> tuple[PoolState, Memory]:
    """The state with those on their way in it, and the memory with since when they are missing."""
    unseen = {
        found.name: _unseen(found, memory, state.now_s)
        for found in state.variants
        if found.num_unseen > 0
    }
    patience_s = {
        variant.name: cold_start_s(variant, state.variants) for variant in policy.variants
    }
    coming = {name for name, u in unseen.items() if state.now_s - u.since_s <= patience_s[name]}
    variants = tuple(
        replace(found, num_coming=found.num_unseen if found.name in coming else 0)
        for found in state.variants
    )
    return replace(state, variants=variants), replace(memory, unseen=unseen)


def _unseen(found: VariantState, memory: Memory, now_s: float) -> Unseen:
    """When one comes, patience begins anew; not with an order on top of what does not come."""
    known = memory.unseen.get(found.name)
    if known is None or found.num_live > known.num_live:
        return Unseen(found.num_live, now_s)
    return Unseen(found.num_live, known.since_s)
