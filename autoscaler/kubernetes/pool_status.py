"""The ``status`` of a ReplicaPool: what a tick saw, wanted and did, and why.

It is also the autoscaler's notebook: ``orders`` and ``decided_by`` are written *before* a count is,
so that whoever leads next can tell its predecessor's counts from a person's, and a predecessor that
wakes up late finds another's name there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Order:
    """Counts of one variant that are ours; the target has one of them, or a person wrote it."""

    written: int | None = None
    writing: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantStatus:
    name: str
    num_wanted: int
    num_ordered: int
    num_ready: int
    num_starting: int
    num_draining: int
    num_unschedulable: int
    num_stuck: int
    num_terminating: int
    tokens_per_s: float | None = None
    cold_starts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasonStatus:
    code: str
    message: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    observed_generation: int | None = None
    decided_at: str | None = None
    decided_by: str | None = None
    num_wanted: int | None = None
    num_ordered: int | None = None
    num_ready: int | None = None
    reason: str | None = None
    reasons: tuple[ReasonStatus, ...] = ()
    variants: tuple[VariantStatus, ...] = ()
    planned: tuple[str, ...] = ()
    orders: Mapping[str, Order] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
