"""From a tick's report to the resource's status and to what people are told (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from autoscaler.decision import Code, Decision, Reason
from autoscaler.explain import sentence
from autoscaler.kubernetes.objects import PodCondition
from autoscaler.kubernetes.pool_status import Condition, PoolStatus, ReasonStatus, VariantStatus
from autoscaler.kubernetes.wire import Json, to_wire
from autoscaler.plan import Action, Cordon, Release, SetCount, Uncordon
from autoscaler.pool import Phase, VariantState
from autoscaler.reconciler import Report

_UNKNOWN: Final = frozenset({Code.UNKNOWN_DEMAND})


@dataclass(frozen=True, slots=True)
class Seen:
    """Of the resource and of the cluster, beside the report."""

    generation: int
    is_dry_run: bool
    conditions: Sequence[PodCondition]  # as they stand
    unschedulable: str | None


def status_of(report: Report, seen: Seen) -> Json:
    """All fields of the status but the notebook's own."""
    decision = report.decision
    variants = [_variant(found, decision) for found in report.state.variants]
    reasons = _reasons(decision.reasons)
    at = _time(decision.at_s)
    status = PoolStatus(
        observed_generation=seen.generation,
        decided_at=at,
        num_wanted=decision.num_wanted,
        num_ordered=sum(v.num_ordered for v in variants),
        num_ready=sum(v.num_ready for v in variants),
        reason=reasons[0].code if reasons else None,
        reasons=reasons,
        variants=tuple(variants),
        planned=tuple(told(action) for action in report.planned),
        conditions=_conditions(report, seen, at),
    )
    wire: Json = to_wire(status)
    del wire["orders"]
    return wire


def invalid_status(message: str, seen: Seen, now_s: float) -> Json:
    """The resource cannot be followed: nothing is decided."""
    at = _time(now_s)
    facts = {"Valid": ("False", "BadPolicy", message), "Acting": ("False", "BadPolicy", message)}
    return {
        "observedGeneration": seen.generation,
        "conditions": [to_wire(c) for c in _dated(facts, seen, at)],
    }


def is_news(before: Json | None, after: Json) -> bool:
    """Whether more than times and figures changed."""
    return before is None or _gist(before) != _gist(after)


def told(action: Action) -> str:
    match action:
        case SetCount(variant, was, wanted):
            return f"{variant}: count {was} -> {wanted}"
        case Cordon(variant, replica):
            return f"{variant}: cordon {replica}"
        case Uncordon(variant, replica):
            return f"{variant}: uncordon {replica}"
        case Release(variant, replica, released_to):
            return f"{variant}: release {replica} for a count of {released_to}"


def _gist(status: Json) -> object:
    return {
        **{k: v for k, v in status.items() if k not in ("decidedAt", "reasons")},
        "reasons": [reason["code"] for reason in status.get("reasons", ())],
        "conditions": [
            (c["type"], c["status"], c["reason"], c["message"] if c["type"] == "Conflict" else "")
            for c in status.get("conditions", ())
        ],
        "variants": [
            {k: v for k, v in variant.items() if k != "tokensPerSecond"}
            for variant in status.get("variants", ())
        ],
    }


def _variant(found: VariantState, decision: Decision) -> VariantStatus:
    return VariantStatus(
        name=found.name,
        num_wanted=decision.wanted[found.name],
        num_ordered=found.num_ordered,
        num_ready=found.count(Phase.READY),
        num_starting=found.count(Phase.STARTING),
        num_draining=found.count(Phase.DRAINING),
        num_unschedulable=found.count(Phase.UNSCHEDULABLE),
        num_stuck=found.count(Phase.STUCK),
        num_terminating=found.count(Phase.TERMINATING),
        tokens_per_s=decision.memory.tokens_per_s.get(found.name),
        cold_starts_s=found.cold_starts_s,
    )


def _reasons(reasons: Iterable[Reason]) -> tuple[ReasonStatus, ...]:
    """The first of each code: the list is a map by it."""
    found: dict[str, ReasonStatus] = {}
    for reason in reasons:
        figures = {name: round(float(figure), 3) for name, figure in reason.figures.items()}
        found.setdefault(reason.code, ReasonStatus(reason.code.value, sentence(reason), figures))
    return tuple(found.values())


Facts = Mapping[str, tuple[str, str, str]]  # type -> status, reason, message


def _conditions(report: Report, seen: Seen, at: str) -> tuple[Condition, ...]:
    codes = report.decision.codes
    is_unknown = bool(codes & _UNKNOWN)
    num_unplaced = sum(v.count(Phase.UNSCHEDULABLE) for v in report.state.variants)
    facts = {
        "Valid": ("True", "Followed", ""),
        "Observed": ("False", "UnknownDemand", sentence(Reason(Code.UNKNOWN_DEMAND)))
        if is_unknown
        else ("True", "Observed", ""),
        "Conflict": ("False", "Alone", "")
        if report.conflict is None
        else ("True", "ScaledByAnother", report.conflict),
        "Schedulable": ("True", "Placed", "")
        if num_unplaced == 0
        else ("False", "Unschedulable", f"{num_unplaced} pods: {seen.unschedulable or ''}"),
        "Acting": _acting(report, seen),
    }
    return _dated(facts, seen, at)


def _acting(report: Report, seen: Seen) -> tuple[str, str, str]:
    if report.conflict is not None:
        return "False", "Conflict", report.conflict
    if seen.is_dry_run:
        return "False", "DryRun", "what is planned is said and not done"
    if report.refused is not None:
        return "False", "Refused", report.refused
    return "True", "Acting", ""


def _dated(facts: Facts, seen: Seen, at: str) -> tuple[Condition, ...]:
    """A condition keeps its time until its status changes."""
    known = {c.type: c for c in seen.conditions}
    found = []
    for type_, (status, reason, message) in facts.items():
        before = known.get(type_)
        since = at
        if before is not None and before.status == status and before.last_transition_time:
            since = _time(before.last_transition_time.timestamp())
        found.append(
            Condition(
                type=type_, status=status, reason=reason, message=message[:1024],
                last_transition_time=since, observed_generation=seen.generation,
            )
        )  # fmt: skip
    return tuple(found)


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
