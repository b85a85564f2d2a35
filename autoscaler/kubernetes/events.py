"""Events beside a ReplicaPool: one for each count written, one when a conflict begins (pure).

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from autoscaler.explain import sentence
from autoscaler.kubernetes import names
from autoscaler.kubernetes.objects import Metadata
from autoscaler.kubernetes.wire import Json
from autoscaler.plan import SetCount
from autoscaler.reconciler import Report

_CONTROLLER = f"{names.GROUP}/autoscaler"


def events_of(
    report: Report, before: Report | None, pool: Metadata, identity: str
) -> Iterator[Json]:
    at_s = report.decision.at_s
    why = "; ".join(sentence(reason) for reason in report.decision.reasons)
    for action in report.done:
        if isinstance(action, SetCount):
            verb = "ScaledUp" if action.wanted > action.seen else "ScaledDown"
            note = f"{action.variant}: {action.seen} -> {action.wanted}: {why}"
            yield _event(pool, identity, at_s, ("Normal", verb, note))
    if report.conflict is not None and (before is None or before.conflict is None):
        yield _event(pool, identity, at_s, ("Warning", "Conflict", report.conflict))


def _event(pool: Metadata, identity: str, at_s: float, told: tuple[str, str, str]) -> Json:
    type_, reason, note = told
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pool.name}-", "namespace": pool.namespace},
        "eventTime": at,
        "type": type_,
        "reason": reason,
        "action": reason,
        "note": note[:1024],
        "reportingController": _CONTROLLER,
        "reportingInstance": identity[:128],
        "regarding": {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "name": pool.name,
            "namespace": pool.namespace, "uid": pool.uid,
        },
    }  # fmt: skip
