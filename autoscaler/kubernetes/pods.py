"""From a pod to a replica's phase (pure).

Not ready is told apart by why: no node has the GPUs for it, it is loading a model, or it does not
get there.  A drain is an annotation, so that whoever looks next sees it; a pod that drains stays
one that drains though its probe fails: it says itself that it wants no more work.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from autoscaler.cluster import Address
from autoscaler.kubernetes.names import DRAINING_SINCE, RELEASED_TO
from autoscaler.kubernetes.objects import Pod
from autoscaler.pool import Phase, Replica

MIN_STUCK_AFTER_S: Final = 300.0
STUCK_COLD_STARTS: Final = 3.0  # a start that takes so many times the expected one
_KUBELET_PATIENCE_S: Final = 60.0  # from a pod's placement to the kubelet's first word of it

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_HOPELESS: Final = frozenset(
    {
        "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of a variant's pods."""

    cold_start_s: float
    metrics_port: int

    @property
    def stuck_after_s(self) -> float:
        return max(MIN_STUCK_AFTER_S, STUCK_COLD_STARTS * self.cold_start_s)


def is_counted(pod: Pod) -> bool:
    """One that has ended is replaced by its owner, and counts no more."""
    return pod.status.phase not in _ENDED


def replica_of(pod: Pod, expected: Expectation, now_s: float) -> Replica:
    return Replica(
        pod.metadata.name,
        phase_of(pod, expected, now_s),
        draining_since_s=_number(pod, DRAINING_SINCE),
        released_to=None if (to := _number(pod, RELEASED_TO)) is None else int(to),
    )


def phase_of(pod: Pod, expected: Expectation, now_s: float) -> Phase:
    if pod.metadata.deletion_timestamp is not None:
        return Phase.TERMINATING
    if _is_unschedulable(pod):
        return Phase.UNSCHEDULABLE
    is_ready, since_s = _readiness(pod, now_s)
    if is_ready or _number(pod, DRAINING_SINCE) is not None:
        return Phase.READY if _number(pod, DRAINING_SINCE) is None else Phase.DRAINING
    is_hopeless = any(
        found.state.waiting is not None and found.state.waiting.reason in _HOPELESS
        for found in pod.status.container_statuses
    )
    if is_hopeless or now_s - since_s >= expected.stuck_after_s:
        return Phase.STUCK
    return Phase.STARTING


def address_of(pod: Pod, expected: Expectation) -> Address | None:
    """Of one that can be asked: a pod has an address before anything listens there."""
    if pod.status.pod_ip == "" or pod.metadata.deletion_timestamp is not None:
        return None
    is_ready, _ = _readiness(pod, 0.0)
    if not is_ready and _number(pod, DRAINING_SINCE) is None:
        return None
    return Address(pod.status.pod_ip, expected.metrics_port)


def has_yet_to_start(pod: Pod) -> bool:
    """Not ready, and never was: one whose readiness flaps became unready later."""
    ready, placed = pod.status.condition("Ready"), pod.status.condition("PodScheduled")
    if ready is None or placed is None or placed.status != "True":
        return True
    if ready.status == "True" or any(c.restart_count > 0 for c in pod.status.container_statuses):
        return False
    if ready.last_transition_time is None or placed.last_transition_time is None:
        return True
    unready_s = (ready.last_transition_time - placed.last_transition_time).total_seconds()
    return unready_s < _KUBELET_PATIENCE_S


def cold_start_s(pod: Pod) -> float | None:
    """From a node's acceptance to readiness; ``None``: not ready, or not its first start.

    The wait for a node is the cluster's, and does not belong to it.  Only of a pod that was seen
    before it was ready: after a flap it is the pod's age.
    """
    ready, placed = pod.status.condition("Ready"), pod.status.condition("PodScheduled")
    if ready is None or placed is None or ready.status != "True":
        return None
    if any(found.restart_count > 0 for found in pod.status.container_statuses):
        return None
    if ready.last_transition_time is None or placed.last_transition_time is None:
        return None
    return max(0.0, (ready.last_transition_time - placed.last_transition_time).total_seconds())


def unschedulable_message(pod: Pod) -> str | None:
    """The scheduler's words: which resource is short on how many nodes."""
    placed = pod.status.condition("PodScheduled")
    return placed.message if placed is not None and _is_unschedulable(pod) else None


def _is_unschedulable(pod: Pod) -> bool:
    placed = pod.status.condition("PodScheduled")
    return placed is not None and placed.status == "False" and placed.reason == "Unschedulable"


def _readiness(pod: Pod, now_s: float) -> tuple[bool, float]:
    """Whether, and since when: a pod that was ready and is not has its time anew."""
    ready = pod.status.condition("Ready")
    if ready is None:
        return False, _epoch_s(pod.metadata.creation_timestamp, now_s)
    since = ready.last_transition_time or pod.metadata.creation_timestamp
    return ready.status == "True", _epoch_s(since, now_s)


def _epoch_s(at: datetime | None, now_s: float) -> float:
    return now_s if at is None else at.timestamp()


def _number(pod: Pod, annotation: str) -> float | None:
    """What a person has written by hand may be no number: then it says nothing."""
    try:
        number = float(pod.metadata.annotations[annotation])
    except (KeyError, ValueError):
        return None
    return number if math.isfinite(number) else None
