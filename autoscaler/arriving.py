"""Replicas on their way: since when, and what they and the ready ones will have done (pure).

An order that is halfway there gives half a cold start more of work than one made now.  Without
their ages, what was ordered for a backlog would seem to have cleared it already, and be taken back.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from autoscaler.capacity import cold_start_s
from autoscaler.decision import Memory
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState, VariantState


def noted(state: PoolState, memory: Memory) -> Memory:
    """The memory with since when each is expected, the oldest first; that one comes first."""
    since = {found.name: _since_s(found, memory, state.now_s) for found in state.variants}
    return replace(memory, coming_since_s=since)


def work_within(
    horizon_s: float,
    state: PoolState,
    policy: PoolPolicy,
    memory: Memory,
    rates: Mapping[str, float],
) -> float:
    """Tokens that what is ready or ordered can do by then."""
    total = 0.0
    for found in state.variants:
        waits_s = _waits_s(found, state, policy, memory)
        served_s = sum(max(0.0, horizon_s - wait_s) for wait_s in waits_s)
        total += rates[found.name] * (found.num_ready * horizon_s + served_s)
    return total


def longest_wait_s(state: PoolState, policy: PoolPolicy, memory: Memory) -> float:
    """Until the last one on its way is ready; 0: there is none."""
    waits_s = (_waits_s(found, state, policy, memory) for found in state.variants)
    return max(chain.from_iterable(waits_s), default=0.0)


def _waits_s(
    found: VariantState, state: PoolState, policy: PoolPolicy, memory: Memory
) -> list[float]:
    """Of each that is on its way, until it is ready."""
    (variant,) = (variant for variant in policy.variants if variant.name == found.name)
    start_s = cold_start_s(variant, (found,))
    since = memory.coming_since_s.get(found.name, ())
    return [max(0.0, start_s - (state.now_s - since_s)) for since_s in since]


def _since_s(found: VariantState, memory: Memory, now_s: float) -> tuple[float, ...]:
    known = memory.coming_since_s.get(found.name, ())
    num_coming = found.num_capacity - found.num_ready
    kept = known[max(0, len(known) - num_coming) :]
    return (*kept, *[now_s] * (num_coming - len(kept)))
