"""Signals that speak for more replicas though demand does not explain it (pure).

Users wait too long for a first token, or KV caches are full, for a while and on enough evidence.
They only ever ask for one more, and only where more replicas can help: slots must be in use.  A
slow model on an idle fleet would stay slow.
"""

from dataclasses import replace
from typing import Final

from autoscaler.decision import Code, Memory, Reason
from autoscaler.policy import PoolPolicy
from autoscaler.pool import Phase, PoolState

MIN_SLOT_USAGE: Final = 0.5


def watched(state: PoolState, policy: PoolPolicy, memory: Memory) -> Memory:
    """The memory with since when each signal is on.  A signal not told stays as it was.

    Asked only when demand is known.
    """
    late, full = _is_late(state, policy), _is_full(state, policy)
    return replace(
        memory,
        late_since_s=_since(memory.late_since_s, late, memory.known_s),
        full_since_s=_since(memory.full_since_s, full, memory.known_s),
    )


def fired(state: PoolState, policy: PoolPolicy, memory: Memory) -> tuple[Reason, ...]:
    """Empty while replicas are on their way: they are the answer to what is seen now."""
    is_awaited = any(found.num_coming > 0 for found in state.variants)
    if is_awaited or any(replica.phase is Phase.STARTING for replica in state.replicas):
        return ()
    if slot_usage(state, policy) < MIN_SLOT_USAGE:
        return ()
    found = []
    for code, since in (
        (Code.TTFT_GUARD, memory.late_since_s),
        (Code.KV_GUARD, memory.full_since_s),
    ):
        if since is not None and memory.known_s - since >= policy.guard_window_s:
            found.append(Reason(code, {"for_s": memory.known_s - since}))
    return tuple(found)


def restarted(memory: Memory) -> Memory:
    """After an order: what is seen from now on must last anew."""
    return replace(
        memory,
        late_since_s=None if memory.late_since_s is None else memory.known_s,
        full_since_s=None if memory.full_since_s is None else memory.known_s,
    )


def slot_usage(state: PoolState, policy: PoolPolicy) -> float:
    num_slots = sum(
        found.num_ready * variant.num_slots
        for found in state.variants
        for variant in policy.variants
        if variant.name == found.name
    )
    return state.num_in_flight / num_slots if num_slots > 0 else 0.0


def _is_late(state: PoolState, policy: PoolPolicy) -> bool | None:
    """The gateway's word counts; where it has none, engines can tell of lateness, not of its end.

    Engines know nothing of a request's wait before they have it.
    """
    told = state.ttft if state.gateway_ttft is None else state.gateway_ttft
    is_whole = state.gateway_ttft is not None or not policy.is_told_by_gateway
    if told is not None and told.num_samples >= policy.min_ttft_samples:
        if told.p95_s > policy.ttft_slo_s:
            return True
    elif state.num_in_flight == 0:
        return False  # a window that was observed and is empty: nobody waits
    return False if told is not None and is_whole else None


def _is_full(state: PoolState, policy: PoolPolicy) -> bool | None:
    usages = [r.load.kv_cache_usage for r in state.replicas if r.load is not None]
    return sum(usages) / len(usages) > policy.kv_guard_usage if usages else None


def _since(known: float | None, is_on: bool | None, now_s: float) -> float | None:
    if is_on is None:
        return known
    if not is_on:
        return None
    return now_s if known is None else known
