"""How many replicas of each variant a pool shall have (pure, deterministic).

``decide`` is a function of what is known now, the operator's policy and the memory of the last
decision.  It compares what is needed with what is ready *or ordered*, so capacity on its way is not
ordered twice.  Unknown demand holds.  What speaks for more comes before what speaks for less, and
the bounds come last, on every path.
"""

from collections.abc import Sequence
from dataclasses import replace

from autoscaler import arriving, guards
from autoscaler.bounds import bounded, bounds_at, quotas
from autoscaler.decision import Code, Decision, Memory, Need, Reason
from autoscaler.grow import missing_tokens_per_s, order
from autoscaler.manual import noticed, respected
from autoscaler.need import Outlook, learned, outlook, rates_of, supply_tokens_per_s
from autoscaler.policy import PoolPolicy
from autoscaler.pool import Phase, PoolState
from autoscaler.shrink import Shrunk, down_window_s, shrunk
from autoscaler.unseen import awaited


def decide(state: PoolState, policy: PoolPolicy, memory: Memory) -> Decision:
    state, memory = awaited(state, policy, noticed(state, policy, memory))
    memory = arriving.noted(state, memory)
    if state.demand is None or state.demand.interval_s <= 0:
        seen = memory
        changed = _held(state, memory, Reason(Code.UNKNOWN_DEMAND))
    else:
        seen, look = _look(state, policy, memory)
        if (manual := respected(state, seen)) is not None:
            changed = _held(state, seen, manual)
        else:
            changed = _changed(state, policy, seen, look)
    wanted, reasons, memory = changed
    counts, forced = bounded(wanted, bounds_at(state, policy), quotas(policy, memory))
    all_reasons = (*reasons, *forced, *_said(state))
    return Decision(state.now_s, counts, all_reasons, memory, seen)


def _look(state: PoolState, policy: PoolPolicy, memory: Memory) -> tuple[Memory, Outlook]:
    assert state.demand is not None, "asked by the caller"
    memory = guards.watched(state, policy, learned(state, state.demand, policy, memory))
    look = outlook(state, policy, memory, state.demand.interval_s)
    oldest = memory.known_s - max(down_window_s(state, policy), policy.up_window_s)
    needs = (*_since(memory.needs, oldest), look.need(memory.known_s, policy))
    return replace(memory, needs=needs), look


def _changed(state: PoolState, policy: PoolPolicy, memory: Memory, look: Outlook) -> Shrunk:
    missing, why = missing_tokens_per_s(state, policy, memory)
    if missing > 0:
        counts, short = order(state, policy, memory, missing)
        return counts, (*why, look.reason, *short), guards.restarted(memory)
    counts, reasons, memory = shrunk(state, policy, memory)
    if not reasons:
        reasons = (Reason(_quiet_code(state, policy, memory)),)
    return counts, (*reasons, look.reason), memory


def _quiet_code(state: PoolState, policy: PoolPolicy, memory: Memory) -> Code:
    supply = supply_tokens_per_s(state, rates_of(memory, policy))
    is_short = memory.needs[-1].total_tokens_per_s > supply
    return Code.NOT_SUSTAINED if is_short else Code.STEADY


def _held(state: PoolState, memory: Memory, why: Reason) -> Shrunk:
    return {found.name: found.num_kept for found in state.variants}, (why,), memory


def _said(state: PoolState) -> Sequence[Reason]:
    """Replicas that are ordered and do not serve."""
    found = []
    for phase, code in ((Phase.UNSCHEDULABLE, Code.UNSCHEDULABLE), (Phase.STUCK, Code.STUCK)):
        count = sum(replica.phase is phase for replica in state.replicas)
        if count > 0:
            found.append(Reason(code, {"num_replicas": count}))
    num_overdue = sum(v.num_unseen - v.num_coming for v in state.variants)
    if num_overdue > 0:
        found.append(Reason(Code.UNSEEN, {"num_replicas": num_overdue}))
    return found


def _since(needs: Sequence[Need], oldest_s: float) -> Sequence[Need]:
    return [need for need in needs if need.known_s >= oldest_s]
