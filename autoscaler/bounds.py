"""Floor and ceiling of a pool, held on every path of a decision (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.capacity import longest_cold_start_s
from autoscaler.decision import Code, Memory, Reason
from autoscaler.mix import Offer, cheapest_order, dearest_order
from autoscaler.need import rates_of
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState


@dataclass(frozen=True, slots=True)
class Bounds:
    floor: int
    ceiling: int
    is_scheduled: bool  # the floor is a schedule's


def bounds_at(state: PoolState, policy: PoolPolicy) -> Bounds:
    """A schedule counts from a cold start before its time: when it begins, replicas are ready."""
    lead_s = longest_cold_start_s(policy.variants, state.variants)
    instants = (state.now_s, state.now_s + lead_s)
    scheduled = [
        schedule.min_replicas
        for schedule in policy.schedules
        if any(schedule.covers(instant) for instant in instants)
    ]
    floor = max([policy.min_replicas, *scheduled])
    return Bounds(floor, policy.max_replicas, is_scheduled=floor > policy.min_replicas)


def bounded(
    wanted: Mapping[str, int], bounds: Bounds, offers: Sequence[Offer]
) -> tuple[Mapping[str, int], Sequence[Reason]]:
    """The wanted counts within quotas, floor and ceiling, and what had to be changed for it."""
    quotas = {offer.name: offer.num_available for offer in offers}
    counts = {name: min(count, quotas[name]) for name, count in wanted.items()}
    reasons = []
    for name in dearest_order(offers):
        counts[name] -= min(counts[name], max(0, sum(counts.values()) - bounds.ceiling))
    if counts != wanted:
        reasons.append(Reason(Code.CEILING, {"ceiling": bounds.ceiling}))
    if sum(counts.values()) < bounds.floor:
        code = Code.SCHEDULE if bounds.is_scheduled else Code.FLOOR
        reasons.append(Reason(code, {"floor": bounds.floor}))
    for name in cheapest_order(offers):
        missing = max(0, bounds.floor - sum(counts.values()))
        counts[name] += min(missing, quotas[name] - counts[name])
    return counts, reasons


def quotas(policy: PoolPolicy, memory: Memory) -> Sequence[Offer]:
    """Each variant with all that it may ever have."""
    rates = rates_of(memory, policy)
    return [Offer(v.name, rates[v.name], v.cost_usd_per_h, v.max_replicas) for v in policy.variants]
