"""Whether, and which, replicas to order (pure)."""

import math
from collections.abc import Sequence
from typing import Final

from autoscaler import guards
from autoscaler.decision import Code, Memory, Need, Reason
from autoscaler.mix import EPSILON, Offer, cheapest_sufficient
from autoscaler.need import rates_of, supply_tokens_per_s
from autoscaler.policy import PoolPolicy
from autoscaler.pool import Phase, PoolState, VariantState

ANY_TOKENS_PER_S: Final = 1e-3  # what one replica of any kind does
SUSTAINED_RATIO: Final = 2 / 3  # of the looks in the window: one odd look decides nothing
URGENT_WAITING_PER_SLOT: Final = 0.25  # of ready replicas: so much waits only where too few serve


def missing_tokens_per_s(
    state: PoolState, policy: PoolPolicy, memory: Memory
) -> tuple[float, tuple[Reason, ...]]:
    """Work a second beyond what is ready or ordered, and why; 0 with no reason: nothing."""
    supply = supply_tokens_per_s(state, rates_of(memory, policy))
    need = memory.needs[-1]
    waiting = {"num_waiting": state.num_waiting}
    if _is_asleep(state) and memory.last_request_s == memory.known_s:
        return max(need.total_tokens_per_s, ANY_TOKENS_PER_S), (Reason(Code.WOKEN, waiting),)
    if _is_urgent(state, policy) and need.total_tokens_per_s > supply:
        return need.total_tokens_per_s - supply, (Reason(Code.BACKLOG, waiting),)
    missing = sustained_tokens_per_s(memory.needs, policy.up_window_s) - supply
    if missing > EPSILON:
        return missing, (Reason(Code.DEMAND_UP, {"missing_tokens_per_s": missing}),)
    fired = guards.fired(state, policy, memory)
    return (ANY_TOKENS_PER_S if fired else 0.0), fired


def sustained_tokens_per_s(needs: Sequence[Need], window_s: float) -> float:
    """What two thirds of the looks in the window reach; 0 from a single look."""
    recent = sorted(
        (n.total_tokens_per_s for n in needs if n.known_s > needs[-1].known_s - window_s - 1.0),
        reverse=True,
    )
    return recent[math.ceil(SUSTAINED_RATIO * len(recent)) - 1] if len(recent) > 1 else 0.0


def offers(state: PoolState, policy: PoolPolicy, memory: Memory) -> list[Offer]:
    """What may be ordered now.  More of what finds no node, or never starts, would not help."""
    found = {variant.name: variant for variant in state.variants}
    rates = rates_of(memory, policy)
    return [
        Offer(
            name=variant.name,
            tokens_per_s=rates[variant.name],
            cost_usd_per_h=variant.cost_usd_per_h,
            num_available=0
            if is_blocked(found[variant.name])
            else max(0, variant.max_replicas - found[variant.name].num_kept),
        )
        for variant in policy.variants
    ]


def order(
    state: PoolState, policy: PoolPolicy, memory: Memory, missing: float
) -> tuple[dict[str, int], tuple[Reason, ...]]:
    """The counts with what was bought, and what kept from buying all of it."""
    kept = {found.name: found.num_kept for found in state.variants}
    room = max(0, policy.max_replicas - sum(kept.values()))
    available = offers(state, policy, memory)
    bought = cheapest_sufficient(missing, available, room)
    got = sum(bought[offer.name] * offer.tokens_per_s for offer in available)
    counts = {name: count + bought[name] for name, count in kept.items()}
    if got >= missing - EPSILON:
        return counts, ()
    blocked = any(is_blocked(found) for found in state.variants)
    left = {"missing_tokens_per_s": missing - got}
    return counts, () if blocked else (Reason(Code.CEILING, left),)


def is_blocked(found: VariantState) -> bool:
    """No node for it, or not one of it has ever come up, or what was ordered never came."""
    no_node = found.count(Phase.UNSCHEDULABLE) > 0
    none_starts = found.count(Phase.STUCK) > 0 and found.count(Phase.READY) == 0
    return no_node or none_starts or found.num_unseen > found.num_coming


def _is_asleep(state: PoolState) -> bool:
    return all(found.num_kept == 0 for found in state.variants)


def _is_urgent(state: PoolState, policy: PoolPolicy) -> bool:
    slots = {variant.name: variant.num_slots for variant in policy.variants}
    ready = sum(found.num_ready * slots[found.name] for found in state.variants)
    return ready > 0 and state.num_waiting > URGENT_WAITING_PER_SLOT * ready
