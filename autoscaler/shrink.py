"""Whether, and which, replicas to give up (pure).

Slowly: the largest need of a window stays covered, one step at a time, and those that stay must
have room for every request in flight.  Replicas that serve nobody, for want of a node or stuck, go
at once.
"""

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.bounds import quotas
from autoscaler.decision import Code, Memory, Reason
from autoscaler.mix import EPSILON, dearest_order
from autoscaler.need import supply_tokens_per_s, tokens_per_s
from autoscaler.policy import PoolPolicy
from autoscaler.pool import Phase, PoolState, VariantState

Shrunk = tuple[dict[str, int], tuple[Reason, ...], Memory]


def shrunk(state: PoolState, policy: PoolPolicy, memory: Memory) -> Shrunk:
    """Counts, reasons, and the memory with this step in it."""
    counts = {found.name: found.num_kept - _num_useless(found) for found in state.variants}
    need = _kept_need(memory, policy)
    rates = {v.name: tokens_per_s(memory, v) for v in policy.variants}
    surplus = supply_tokens_per_s(state, rates) - need
    if surplus < -EPSILON:
        return {found.name: found.num_kept for found in state.variants}, (), memory
    chosen = _chosen(state, policy, memory, surplus)
    if not chosen:
        return counts, (), memory
    if (holds := _what_holds(state, policy, memory)) is not None:
        return counts, (holds,), memory
    chosen = _within_step(chosen, policy, sum(counts.values()))
    chosen = _with_survivors(state, policy, chosen)
    figures = {"kept_tokens_per_s": need, "num_in_flight": float(state.num_in_flight)}
    if not chosen:
        return counts, (Reason(Code.SURVIVORS_HOLD, figures),), memory
    for name in chosen:
        counts[name] -= 1
    code = Code.DEMAND_DOWN if sum(counts.values()) > 0 else Code.IDLE
    return counts, (Reason(code, figures),), replace(memory, last_down_s=memory.known_s)


def _num_useless(found: VariantState) -> int:
    return max(0, found.num_kept - found.num_capacity)


def _kept_need(memory: Memory, policy: PoolPolicy) -> float:
    """The largest of a window; a backlog needs no window: it is gone when it is."""
    oldest = memory.known_s - policy.down_window_s
    lasting = [n.lasting_tokens_per_s for n in memory.needs if n.known_s >= oldest]
    return max([memory.needs[-1].total_tokens_per_s, *lasting])


def _chosen(state: PoolState, policy: PoolPolicy, memory: Memory, surplus: float) -> list[str]:
    """One name per replica that is not needed, the dearest work first."""
    found = {variant.name: variant for variant in state.variants}
    rates = {v.name: tokens_per_s(memory, v) for v in policy.variants}
    chosen: list[str] = []
    for name in dearest_order(quotas(policy, memory)):
        for _ in range(found[name].num_capacity):
            if surplus - rates[name] < -EPSILON:
                break
            surplus -= rates[name]
            chosen.append(name)
    num_left = sum(variant.num_capacity for variant in state.variants) - len(chosen)
    return chosen[:-1] if num_left == 0 and not _may_sleep(state, policy, memory) else chosen


def _may_sleep(state: PoolState, policy: PoolPolicy, memory: Memory) -> bool:
    """Nothing in flight anywhere, nobody who did not tell, and nobody has come for a while."""
    is_idle = state.num_in_flight == 0 and state.num_unknown == 0
    idle_s = memory.known_s - memory.last_request_s
    return policy.min_replicas == 0 and is_idle and idle_s >= policy.idle_before_zero_s


def _what_holds(state: PoolState, policy: PoolPolicy, memory: Memory) -> Reason | None:
    serving = sum(replica.phase in (Phase.READY, Phase.DRAINING) for replica in state.replicas)
    if state.num_unknown > policy.max_unknown_ratio * serving:
        return Reason(Code.UNKNOWN_REPLICAS, {"num_unknown": state.num_unknown})
    if memory.late_since_s is not None:
        return Reason(Code.TTFT_GUARD, {"for_s": memory.known_s - memory.late_since_s})
    if memory.full_since_s is not None:
        return Reason(Code.KV_GUARD, {"for_s": memory.known_s - memory.full_since_s})
    if memory.known_s < policy.down_window_s:
        return Reason(Code.WINDOW_HOLDS, {"known_s": memory.known_s})
    last = memory.last_down_s
    if last is not None and memory.known_s - last < policy.down_interval_s:
        return Reason(Code.INTERVAL_HOLDS, {"since_s": memory.known_s - last})
    return None


def _within_step(chosen: list[str], policy: PoolPolicy, num_replicas: int) -> list[str]:
    return chosen[: max(1, int(policy.down_step_ratio * num_replicas))]


def _with_survivors(state: PoolState, policy: PoolPolicy, chosen: list[str]) -> list[str]:
    """As many of them as leave room for all that is in flight; who has not told counts as full."""
    slots = {variant.name: variant.num_slots for variant in policy.variants}
    ready = {found.name: found.num_ready for found in state.variants}
    unknown = {
        found.name: sum(r.phase is Phase.READY and r.load is None for r in found.replicas)
        for found in state.variants
    }
    taken = state.num_in_flight + _slots(unknown, slots)
    for num_given_up in range(len(chosen), 0, -1):
        left = dict(ready)
        for name in _ready_ones(state, chosen[:num_given_up]):
            left[name] -= 1
        if taken <= policy.target_usage * _slots(left, slots):
            return chosen[:num_given_up]
    return []


def _ready_ones(state: PoolState, chosen: list[str]) -> list[str]:
    """Those of the chosen that serve: of each variant, what has not started yet goes first."""
    serving = []
    for found in state.variants:
        num_starting = max(0, found.num_capacity - found.num_ready)
        serving += [name for name in chosen if name == found.name][num_starting:]
    return serving


def _slots(counts: Mapping[str, int], slots: Mapping[str, int]) -> int:
    return sum(count * slots[name] for name, count in counts.items())
