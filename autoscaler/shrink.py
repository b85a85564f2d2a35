"""Whether, and which, replicas to give up (pure).

What serves nobody, for want of a node, stuck, or still starting, goes as soon as it is not needed.
What serves goes slowly: the largest need of a window stays covered, one step at a time, and those
that stay must have room for every request in flight.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.bounds import quotas
from autoscaler.capacity import longest_cold_start_s
from autoscaler.decision import Code, Memory, Reason
from autoscaler.mix import EPSILON, dearest_order
from autoscaler.need import rates_of, supply_tokens_per_s
from autoscaler.policy import PoolPolicy
from autoscaler.pool import SERVING_PHASES, Phase, PoolState, VariantState

LASTING_S: Final = 60.0  # what was needed for less is not kept for it
MOMENT_S: Final = 120.0  # an order is not taken back before

Shrunk = tuple[dict[str, int], tuple[Reason, ...], Memory]


def shrunk(state: PoolState, policy: PoolPolicy, memory: Memory) -> Shrunk:
    """Counts, reasons, and the memory with this step in it."""
    useful = {found.name: found.num_kept - _num_useless(found) for found in state.variants}
    need = _kept_need(state, policy, memory)
    surplus = supply_tokens_per_s(state, rates_of(memory, policy)) - need
    if surplus < -EPSILON:
        return {found.name: found.num_kept for found in state.variants}, (), memory
    spare = _spare(state, policy, memory, surplus)
    if not spare.starting and not spare.serving:
        return useful, (), memory
    if (holds := _what_holds(state, policy, memory)) is not None:
        return useful, (holds,), memory
    going, stays = _going(state, policy, memory, spare.serving)
    if not going and not spare.starting:
        return useful, stays, memory
    counts = _without(useful, [*spare.starting, *going])
    if going:
        memory = replace(memory, last_down_s=memory.known_s)
    code = Code.DEMAND_DOWN if sum(counts.values()) > 0 else Code.IDLE
    return counts, (Reason(code, {"kept_tokens_per_s": need}), *stays), memory


def down_window_s(state: PoolState, policy: PoolPolicy) -> float:
    """Until keeping has cost as much as another one's cold start, once a need has lasted.

    Where that is longer than the policy's window, who keeps for so long pays at most twice what
    knowing the future would have (ski rental; Karlin et al., Competitive Snoopy Caching, 1988).
    """
    start_s = longest_cold_start_s(policy.variants, state.variants)
    lasting_s = min(LASTING_S, policy.down_window_s)  # in a shorter window nothing lasts longer
    return max(policy.down_window_s, lasting_s + start_s)


@dataclass(frozen=True, slots=True)
class _Spare:
    """One name per replica that is not needed."""

    starting: list[str]
    serving: list[str]


def _spare(state: PoolState, policy: PoolPolicy, memory: Memory, surplus: float) -> _Spare:
    """The dearest work first, and of each variant first what does not serve yet."""
    found = {variant.name: variant for variant in state.variants}
    rates = rates_of(memory, policy)
    spare = _Spare([], [])
    for name in dearest_order(quotas(policy, memory)):
        num_spare = min(found[name].num_capacity, int((surplus + EPSILON) / rates[name]))
        surplus -= num_spare * rates[name]
        num_starting = min(num_spare, found[name].num_capacity - found[name].num_ready)
        spare.starting.extend([name] * num_starting)
        spare.serving.extend([name] * (num_spare - num_starting))
    num_spare = len(spare.starting) + len(spare.serving)
    is_last = num_spare == sum(variant.num_capacity for variant in state.variants)
    if is_last and num_spare > 0 and not _may_sleep(state, policy, memory):
        (spare.serving or spare.starting).pop()
    return spare


def _going(
    state: PoolState, policy: PoolPolicy, memory: Memory, serving: list[str]
) -> tuple[list[str], tuple[Reason, ...]]:
    """Of those that serve and are not needed: who goes now, and why not more."""
    if not serving:
        return [], ()
    last = memory.last_down_s
    since_s = math.inf if last is None else memory.known_s - last
    if since_s < policy.down_interval_s:
        return [], (Reason(Code.INTERVAL_HOLDS, {"since_s": since_s}),)
    ready = sum(found.num_ready for found in state.variants)
    step = serving[: max(1, int(policy.down_step_ratio * ready))]
    going = _with_survivors(state, policy, step)
    if len(going) == len(step):
        return going, ()
    return going, (Reason(Code.SURVIVORS_HOLD, {"num_in_flight": state.num_in_flight}),)


def _num_useless(found: VariantState) -> int:
    return max(0, found.num_kept - found.num_capacity)


def _kept_need(state: PoolState, policy: PoolPolicy, memory: Memory) -> float:
    """The largest of a window that lasted, and all of the last moment, with its backlog."""
    oldest = memory.known_s - down_window_s(state, policy)
    recent = [need for need in memory.needs if need.known_s >= oldest]
    moment = memory.known_s - MOMENT_S
    kept = max(n.kept_tokens_per_s for n in recent if n.known_s >= moment)
    first = 0
    for last, need in enumerate(recent):
        while recent[first].known_s < need.known_s - LASTING_S:
            first += 1
        kept = max(kept, min(n.lasting_tokens_per_s for n in recent[first : last + 1]))
    return kept


def _may_sleep(state: PoolState, policy: PoolPolicy, memory: Memory) -> bool:
    """Nothing in flight anywhere, nobody who did not tell, and nobody has come for a while."""
    is_idle = state.num_in_flight == 0 and state.num_unknown == 0
    idle_s = memory.known_s - memory.last_request_s
    return policy.min_replicas == 0 and is_idle and idle_s >= policy.idle_before_zero_s


def _what_holds(state: PoolState, policy: PoolPolicy, memory: Memory) -> Reason | None:
    serving = sum(replica.phase in SERVING_PHASES for replica in state.replicas)
    if state.num_unknown > policy.max_unknown_ratio * serving:
        return Reason(Code.UNKNOWN_REPLICAS, {"num_unknown": state.num_unknown})
    if memory.late_since_s is not None:
        return Reason(Code.TTFT_GUARD, {"for_s": memory.known_s - memory.late_since_s})
    if memory.full_since_s is not None:
        return Reason(Code.KV_GUARD, {"for_s": memory.known_s - memory.full_since_s})
    if memory.known_s < down_window_s(state, policy):
        return Reason(Code.WINDOW_HOLDS, {"known_s": memory.known_s})
    return None


def _with_survivors(state: PoolState, policy: PoolPolicy, step: list[str]) -> list[str]:
    """As many of them as leave room for all that is in flight; who has not told counts as full."""
    slots = {variant.name: variant.num_slots for variant in policy.variants}
    ready = {found.name: found.num_ready for found in state.variants}
    unknown = {
        found.name: sum(r.phase is Phase.READY and r.load is None for r in found.replicas)
        for found in state.variants
    }
    taken = state.num_in_flight + _slots(unknown, slots)
    going = list(step)
    while going and taken > policy.target_usage * _slots(_without(ready, going), slots):
        going.pop()
    return going


def _without(counts: Mapping[str, int], names: list[str]) -> dict[str, int]:
    return {name: count - names.count(name) for name, count in counts.items()}


def _slots(counts: Mapping[str, int], slots: Mapping[str, int]) -> int:
    return sum(count * slots[name] for name, count in counts.items())
