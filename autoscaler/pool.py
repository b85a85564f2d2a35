"""What is known of one pool at one instant: the input of every decision.

A pool serves one model.  Its replicas come in variants, one per kind of GPU and workload.
``None`` is *unknown* everywhere here, and unknown is never zero.

**Work** is counted in tokens: those a request generates, and its prompt's by what they cost beside
generated ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PROMPT_TOKEN_WORK: Final = 0.05  # of a generated token's: prefills run that much faster


def work_tokens(*, generated: float, prompt: float) -> float:
    return generated + PROMPT_TOKEN_WORK * prompt


class Phase(StrEnum):
    UNSCHEDULABLE = "unschedulable"  # no node has the GPUs for it
    STARTING = "starting"
    STUCK = "stuck"  # not ready after a time in which others are
    READY = "ready"
    DRAINING = "draining"  # takes no new request, and leaves when it has none
    TERMINATING = "terminating"  # out of the count already, still costing


CAPACITY_PHASES = frozenset({Phase.READY, Phase.STARTING})
SERVING_PHASES = frozenset({Phase.READY, Phase.DRAINING})


@dataclass(frozen=True, slots=True)
class EngineLoad:
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    tokens_per_s: float | None = None  # work done since the last look; None: only one look so far


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    phase: Phase
    load: EngineLoad | None = None
    draining_since_s: float | None = None  # seconds since the epoch
    released_to: int | None = None  # the count that was to be written when it may be deleted

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.TERMINATING


@dataclass(frozen=True, slots=True)
class VariantState:
    name: str
    num_ordered: int  # the target's count: all but the terminating
    replicas: tuple[Replica, ...]
    num_written: int | None = None  # the count that we wrote last; None: never, or not known
    cold_starts_s: tuple[float, ...] = ()  # of replicas that became ready
    num_coming: int = 0  # of those not seen yet, how many are still expected

    def count(self, phase: Phase) -> int:
        return sum(replica.phase is phase for replica in self.replicas)

    @property
    def num_live(self) -> int:
        return sum(replica.is_live for replica in self.replicas)

    @property
    def num_unseen(self) -> int:
        """Ordered, and not there."""
        return max(0, self.num_ordered - self.num_live)

    @property
    def num_kept(self) -> int:
        """Ordered, less those that drain: what a decision may compare with."""
        num_leaving = sum(
            r.phase is Phase.DRAINING and not self.is_unordered(r) for r in self.replicas
        )
        return max(0, self.num_ordered - num_leaving)

    def is_unordered(self, replica: Replica) -> bool:
        """It has drained, and the count without it has been written."""
        return replica.released_to is not None and self.num_ordered <= replica.released_to

    @property
    def num_capacity(self) -> int:
        """A rollout's surge pods come on top of the order, and are not capacity."""
        found = sum(replica.phase in CAPACITY_PHASES for replica in self.replicas)
        return min(found + self.num_coming, self.num_kept)

    @property
    def num_ready(self) -> int:
        return min(self.count(Phase.READY), self.num_kept)


@dataclass(frozen=True, slots=True)
class Demand:
    """What clients asked for since the last look: counted at the gateway, else from the engines."""

    interval_s: float
    num_arrived: float  # scaled to replicas that did not tell, where engines count
    num_in_flight: int  # waiting at the gateway or running on a replica
    work_tokens: float  # done
    num_done: float  # requests' worth of it: half of one when it begins, half when it ends


@dataclass(frozen=True, slots=True)
class TimeToFirstToken:
    p95_s: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class PoolState:
    now_s: float  # seconds since the epoch
    variants: tuple[VariantState, ...]
    demand: Demand | None
    num_queued: int = 0  # at the gateway, on no replica yet
    ttft: TimeToFirstToken | None = None  # of the engines, from when they have the request
    gateway_ttft: TimeToFirstToken | None = None  # of clients: with the wait before an engine

    @property
    def replicas(self) -> Iterator[Replica]:
        for variant in self.variants:
            yield from variant.replicas

    @property
    def loads(self) -> list[EngineLoad]:
        """Of those that have told."""
        return [replica.load for replica in self.replicas if replica.load is not None]

    @property
    def num_unknown(self) -> int:
        """Replicas that serve and have not told their load."""
        return sum(r.load is None for r in self.replicas if r.phase in SERVING_PHASES)

    @property
    def num_waiting(self) -> int:
        return self.num_queued + sum(load.num_waiting for load in self.loads)

    @property
    def num_in_flight(self) -> int:
        """The larger of two counts of the same requests: neither sees all of them all the time."""
        at_engines = sum(load.num_running + load.num_waiting for load in self.loads)
        at_gateway = 0 if self.demand is None else self.demand.num_in_flight
        return max(at_gateway, at_engines + self.num_queued)
