"""What was decided, why, and what must be remembered until the next decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.forecast import Trend


class Code(StrEnum):
    """Why.  Closed: dashboards count them, ``explain`` has a sentence for each."""

    STEADY = "steady"
    OUTLOOK = "outlook"  # the figures behind any of the others
    DEMAND_UP = "demand_up"
    NOT_SUSTAINED = "not_sustained"
    BACKLOG = "backlog"
    TTFT_GUARD = "ttft_guard"
    KV_GUARD = "kv_guard"
    WOKEN = "woken"
    DEMAND_DOWN = "demand_down"
    WINDOW_HOLDS = "window_holds"
    INTERVAL_HOLDS = "interval_holds"
    SURVIVORS_HOLD = "survivors_hold"
    IDLE = "idle"
    UNKNOWN_DEMAND = "unknown_demand"
    UNKNOWN_REPLICAS = "unknown_replicas"
    UNSCHEDULABLE = "unschedulable"
    STUCK = "stuck"
    UNSEEN = "unseen"
    FLOOR = "floor"
    CEILING = "ceiling"
    SCHEDULE = "schedule"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """Work a second that the pool must be able to do, at one look."""

    known_s: float  # on the clock that stands still while demand is unknown
    lasting_tokens_per_s: float  # without the backlog: what is asked, and will be
    total_tokens_per_s: float  # with it: what an order of now is for
    kept_tokens_per_s: float  # with what orders under way are for


@dataclass(frozen=True, slots=True)
class Unseen:
    """Replicas of a variant that were ordered and are not there."""

    num_live: int  # of those that are
    since_s: float  # seconds since the epoch, at which the last one came


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a decision takes from the one before.  Its loss makes the next ones hold."""

    known_s: float = 0.0
    trend: Trend | None = None
    tokens_per_s: Mapping[str, float] = field(default_factory=dict)  # by variant, learned
    needs: tuple[Need, ...] = ()
    last_down_s: float | None = None  # known_s of the last step down
    last_request_s: float = 0.0  # known_s
    late_since_s: float | None = None  # known_s since which TTFT misses its target
    full_since_s: float | None = None  # known_s since which KV caches are full
    unseen: Mapping[str, Unseen] = field(default_factory=dict)  # by variant that misses some
    coming_since_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by variant
    manual_until_s: float | None = None  # seconds since the epoch
    manual_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    at_s: float
    wanted: Mapping[str, int]  # replicas by variant, those that drain not counted
    reasons: tuple[Reason, ...]
    memory: Memory  # for the next decision, when what is wanted was done
    memory_if_not_done: Memory  # what was seen alone: no step down, no order to wait for

    @property
    def num_wanted(self) -> int:
        return sum(self.wanted.values())

    @property
    def codes(self) -> frozenset[Code]:
        return frozenset(reason.code for reason in self.reasons)
