"""How much work a second a pool must be able to do: demand, chance, backlog (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from autoscaler import capacity, forecast
from autoscaler.arriving import longest_wait_s, work_within
from autoscaler.decision import Code, Memory, Need, Reason
from autoscaler.policy import PoolPolicy, Variant
from autoscaler.pool import Demand, PoolState

RATE_WINDOW_S: Final = 60.0  # over which a rate is known as well as its count allows
DRAIN_S: Final = (45.0, 15.0)  # a backlog shall be gone this long after capacity came; by urgency
DRAIN_RATIO: Final = (0.3, 0.1)  # or so much of the horizon, which is paid for as well
UNKNOWN_DURATION_S: Final = 10.0  # of a request, until one has finished
GATHER_RATIO: Final = (0.2, 1.0)  # of a shortage, how much is believed to last; by urgency
NUM_SIGMAS: Final = (0.5, 2.0)  # of chance that capacity covers; by urgency


@dataclass(frozen=True, slots=True)
class Outlook:
    """What this look says.  Rates are work in tokens a second."""

    now: float
    ahead: float
    chance: float
    backlog: float  # when an order of now becomes ready
    backlog_before: float  # when the last order under way does
    held: float  # of the slots that are taken: a long stream arrives once, and stays
    headroom: float
    horizon_s: float

    def need(self, known_s: float, policy: PoolPolicy) -> Need:
        asked = max(self.now, self.ahead) / policy.target_usage + self.chance
        lasting = max(asked, self.held / policy.target_usage) + self.headroom
        kept = lasting + max(self.backlog, self.backlog_before)
        return Need(known_s, lasting, lasting + self.backlog, kept)

    @property
    def reason(self) -> Reason:
        return Reason(
            Code.OUTLOOK,
            {
                "now_tokens_per_s": self.now,
                "ahead_tokens_per_s": self.ahead,
                "chance_tokens_per_s": self.chance,
                "backlog_tokens_per_s": self.backlog,
                "held_tokens_per_s": self.held,
                "headroom_tokens_per_s": self.headroom,
                "horizon_s": self.horizon_s,
            },
        )


def learned(state: PoolState, demand: Demand, policy: PoolPolicy, memory: Memory) -> Memory:
    """The memory with this look in it."""
    known_s = memory.known_s + demand.interval_s
    rates = {
        variant.name: capacity.next_tokens_per_s(
            tokens_per_s(memory, variant), variant, found, demand.interval_s
        )
        for variant in policy.variants
        for found in state.variants
        if found.name == variant.name
    }
    is_asked = demand.num_arrived > 0 or state.num_in_flight > 0
    return replace(
        memory,
        known_s=known_s,
        trend=forecast.next_trend(memory.trend, demand),
        tokens_per_s={**memory.tokens_per_s, **rates},
        last_request_s=known_s if is_asked else memory.last_request_s,
    )


def tokens_per_s(memory: Memory, variant: Variant) -> float:
    """Of one replica: learned, else planned."""
    return memory.tokens_per_s.get(variant.name, variant.tokens_per_s)


def rates_of(memory: Memory, policy: PoolPolicy) -> dict[str, float]:
    """Tokens a second of one replica, by variant."""
    return {variant.name: tokens_per_s(memory, variant) for variant in policy.variants}


def outlook(state: PoolState, policy: PoolPolicy, memory: Memory, tick_s: float) -> Outlook:
    trend = memory.trend
    assert trend is not None, "a demand was learned before"
    rates = rates_of(memory, policy)
    length = _length(trend, policy)
    horizon_s = tick_s + capacity.longest_cold_start_s(policy.variants, state.variants)
    now = trend.level_per_s
    ahead = trend.ahead_per_s(horizon_s)
    # Two chances, independent: in what runs together, and in having counted only so long.
    window_s = 1.0 / (1.0 / _duration_s(length, policy, rates) + 1.0 / RATE_WINDOW_S)
    chance = forecast.chance_per_s(
        max(now, ahead), window_s=window_s, num_sigmas=_by_urgency(NUM_SIGMAS, policy)
    )

    drain_s = max(_by_urgency(DRAIN_S, policy), _by_urgency(DRAIN_RATIO, policy) * horizon_s)

    def backlog_after(wait_s: float) -> float:
        done = work_within(wait_s, state, policy, memory, rates)
        gathering = now * length * wait_s - done
        waiting = state.num_waiting * length
        return _backlog(policy, waiting=waiting, gathering=gathering) / drain_s

    return Outlook(
        now=now * length,
        ahead=ahead * length,
        chance=chance * length,
        backlog=backlog_after(horizon_s),
        backlog_before=backlog_after(longest_wait_s(state, policy, memory)),
        held=_held(state, policy, rates),
        headroom=policy.headroom_replicas * min(rates.values()),
        horizon_s=horizon_s,
    )


def supply_tokens_per_s(state: PoolState, rates: Mapping[str, float]) -> float:
    """Of what is ready or on its way."""
    return sum(found.num_capacity * rates[found.name] for found in state.variants)


def _backlog(policy: PoolPolicy, *, waiting: float, gathering: float) -> float:
    """Work that will have gathered when an order of now becomes ready.

    What is ready or on its way will have done its part by then; what it cannot do is what an order
    of now is for.
    """
    believed = _by_urgency(GATHER_RATIO, policy) * gathering if gathering > 0 else gathering
    return max(0.0, waiting + believed)


def _held(state: PoolState, policy: PoolPolicy, rates: Mapping[str, float]) -> float:
    """More requests than slots may run on engines that take them: slots are what we promise."""
    of_slot = min(rates[variant.name] / variant.num_slots for variant in policy.variants)
    return of_slot * sum(load.num_running for load in state.loads)


def _length(trend: forecast.Trend, policy: PoolPolicy) -> float:
    """Work of one request."""
    known = trend.lengths.mean_tokens
    if known is not None:
        return known
    first = policy.variants[0]
    return UNKNOWN_DURATION_S * first.tokens_per_s / first.num_slots


def _duration_s(length: float, policy: PoolPolicy, rates: Mapping[str, float]) -> float:
    """Of a mean request on a full replica: shorter ones are averaged over by waiting a moment."""
    slots_per_s = min(rates[v.name] / v.num_slots for v in policy.variants)
    return max(1.0, length / slots_per_s)


def _by_urgency(span: tuple[float, float], policy: PoolPolicy) -> float:
    low, high = span
    return low + policy.urgency * (high - low)
