"""Pools made by hand, and the clock that a test turns."""

from dataclasses import replace

from autoscaler.decide import decide
from autoscaler.decision import Decision, Memory
from autoscaler.policy import PoolPolicy, Variant
from autoscaler.pool import (
    Demand,
    EngineLoad,
    Phase,
    PoolState,
    Replica,
    TimeToFirstToken,
    VariantState,
)

TICK_S = 15.0
NUM_SLOTS = 10
TOKENS_PER_S = 100.0  # of one replica: ten slots of ten tokens a second
TOKENS_PER_REQUEST = 100.0  # so a request takes ten seconds, a replica does one a second

VARIANT = Variant(
    "h200", max_replicas=64, num_slots=NUM_SLOTS, tokens_per_s=TOKENS_PER_S, cold_start_s=180.0
)
POLICY = PoolPolicy(name="chat", variants=(VARIANT,), min_replicas=1, max_replicas=32)


def policy(**changes: object) -> PoolPolicy:
    return replace(POLICY, **changes)  # type: ignore[arg-type]  # checked by the dataclass


def replicas(
    num_ready: int = 0,
    *,
    num_running: int = 0,
    kv_cache_usage: float = 0.1,
    num_unknown: int = 0,
    **others: int,
) -> tuple[Replica, ...]:
    """``others``: how many of each other phase, by its name."""
    load = EngineLoad(num_running, 0, kv_cache_usage)
    found = [
        Replica(f"r{i}", Phase.READY, None if i < num_unknown else load) for i in range(num_ready)
    ]
    for name, count in others.items():
        found += [Replica(f"{name}{i}", Phase(name)) for i in range(count)]
    return tuple(found)


class Scene:
    """A pool under constant or scripted demand, one look after another."""

    def __init__(self, rules: PoolPolicy = POLICY, *, ordered: int = 1) -> None:
        self.policy = rules
        self.memory = Memory()
        self.now_s = 1_800_000_000.0
        self.ordered = ordered
        self.ttft: TimeToFirstToken | None = None
        self.gateway_ttft: TimeToFirstToken | None = None
        self.last: Decision | None = None

    def look(
        self,
        rate_per_s: float | None,
        found: tuple[Replica, ...] | None = None,
        *,
        num_queued: int = 0,
        num_in_flight: int | None = None,
        num_written: int | None = None,
    ) -> Decision:
        """``None``: the demand is unknown.  Replicas are ready, and as busy as they must be."""
        self.now_s += TICK_S
        running = 0 if rate_per_s is None else round(rate_per_s * 10 / max(1, self.ordered))
        if found is None:
            found = replicas(self.ordered, num_running=min(NUM_SLOTS, running))
        in_flight = round((rate_per_s or 0.0) * 10) if num_in_flight is None else num_in_flight
        demand = None
        if rate_per_s is not None:
            arrived = round(rate_per_s * TICK_S)
            demand = Demand(TICK_S, arrived, in_flight, TOKENS_PER_REQUEST * arrived, arrived)
        variant = VariantState("h200", self.ordered, found, num_written)
        state = PoolState(self.now_s, (variant,), demand, num_queued, self.ttft, self.gateway_ttft)
        self.last = decide(state, self.policy, self.memory)
        self.memory = self.last.memory
        return self.last

    def obey(self, rate_per_s: float | None, num_looks: int = 1) -> Decision:
        """Looks, and replicas that come and go at once."""
        for _ in range(num_looks):
            decision = self.look(rate_per_s)
            self.ordered = decision.num_wanted
        return decision
