"""Why a pod is not ready, told apart; and what is said of it."""

import msgspec
import pytest

from autoscaler.cluster import Address
from autoscaler.kubernetes.cold_starts import ColdStarts
from autoscaler.kubernetes.conflicts import conflict_with
from autoscaler.kubernetes.names import DRAINING_SINCE, RELEASED_TO
from autoscaler.kubernetes.objects import Pod, Pool, Scaler
from autoscaler.kubernetes.pods import (
    Expectation,
    address_of,
    cold_start_s,
    is_counted,
    phase_of,
    replica_of,
    unschedulable_message,
)
from autoscaler.kubernetes.resource import pool_spec
from autoscaler.kubernetes.wire import Json
from autoscaler.pool import Phase

BORN = "2027-01-15T08:00:00Z"
BORN_S = 1_800_000_000.0
PLACED: Json = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BORN}
EXPECTED = Expectation(cold_start_s=60.0, metrics_port=8000)


def ready(status: str, at: str = "2027-01-15T08:01:30Z") -> Json:
    return {"type": "Ready", "status": status, "lastTransitionTime": at}


def pod(
    *conditions: Json, waiting: str | None = None, restarts: int = 0, **metadata: object
) -> Pod:
    state: Json = {} if waiting is None else {"waiting": {"reason": waiting}}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": BORN, **metadata},
        "spec": {"containers": []},
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "conditions": list(conditions),
            "containerStatuses": [{"restartCount": restarts, "state": state}],
        },
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


NO_GPU: Json = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}  # fmt: skip
DRAINING = {"annotations": {DRAINING_SINCE: "1800000100.000", RELEASED_TO: "3"}}


@pytest.mark.parametrize(
    ("found", "after_s", "phase"),
    [
        (pod(NO_GPU), 9_999, Phase.UNSCHEDULABLE),
        (pod(PLACED), 1, Phase.STARTING),
        (pod(PLACED, ready("False", BORN)), 200, Phase.STARTING),
        (pod(PLACED, ready("False", BORN)), 301, Phase.STUCK),
        (pod(PLACED, ready("False", BORN), waiting="CrashLoopBackOff"), 1, Phase.STUCK),
        (pod(PLACED, ready("False", BORN), waiting="ImagePullBackOff"), 1, Phase.STUCK),
        (pod(PLACED, ready("False", BORN), waiting="ContainerCreating"), 1, Phase.STARTING),
        (pod(PLACED, ready("True")), 100, Phase.READY),
        (pod(PLACED, ready("False", "2027-01-15T09:00:00Z")), 3_700, Phase.STARTING),
        (pod(PLACED, ready("True"), **DRAINING), 100, Phase.DRAINING),
        (pod(PLACED, ready("False"), **DRAINING), 100, Phase.DRAINING),
        (pod(PLACED, ready("True"), deletionTimestamp=BORN), 100, Phase.TERMINATING),
    ],
    ids=[
        "no-gpu", "new", "loading", "too-long", "crashing", "no-image", "creating", "ready",
        "flapped", "draining", "draining-and-its-probe-fails", "deleted",
    ],
)  # fmt: skip
def test_phases(found: Pod, after_s: float, phase: Phase) -> None:
    assert phase_of(found, EXPECTED, BORN_S + after_s) is phase


def test_a_slow_start_has_its_time() -> None:
    slow = Expectation(cold_start_s=420.0, metrics_port=8000)
    assert phase_of(pod(PLACED, ready("False", BORN)), slow, BORN_S + 1_200) is Phase.STARTING


def test_annotations_are_read_and_nonsense_in_them_is_nothing() -> None:
    found = replica_of(pod(PLACED, ready("True"), **DRAINING), EXPECTED, BORN_S)
    assert (found.draining_since_s, found.released_to) == (1_800_000_100.0, 3)
    for nonsense in ("soon", "nan", "inf", ""):
        annotated = pod(PLACED, ready("True"), annotations={DRAINING_SINCE: nonsense})
        assert replica_of(annotated, EXPECTED, BORN_S).phase is Phase.READY


def test_who_can_be_asked() -> None:
    assert address_of(pod(PLACED, ready("True")), EXPECTED) == Address("10.0.0.7", 8000)
    assert address_of(pod(PLACED, ready("False"), **DRAINING), EXPECTED) is not None
    assert address_of(pod(PLACED, ready("False")), EXPECTED) is None
    assert address_of(pod(PLACED, ready("True"), deletionTimestamp=BORN), EXPECTED) is None


def test_a_cold_start_is_from_node_to_ready_and_only_the_first() -> None:
    assert cold_start_s(pod(PLACED, ready("True"))) == 90.0
    assert cold_start_s(pod(PLACED, ready("False"))) is None
    assert cold_start_s(pod(PLACED, ready("True"), restarts=1)) is None


def named(uid: str, *conditions: Json, **more: int) -> Pod:
    return pod(*conditions, uid=uid, **more)


def test_starts_are_learned_from_pods_that_were_seen_to_start_and_from_no_others() -> None:
    starts = ColdStarts()
    placed_late = {**PLACED, "lastTransitionTime": "2027-01-15T07:59:30Z"}
    starts.note([named("old", PLACED, ready("True", "2027-01-15T13:02:00Z")), named("new", NO_GPU)])
    assert starts.newest_s == (), "who was ready already may have flapped for hours"
    starts.note([named("new", placed_late, ready("False", BORN))])
    starts.note([named("new", placed_late, ready("True"))])
    assert starts.newest_s == (120.0,)
    late = "2027-01-15T13:00:00Z"
    starts.note([named("new", placed_late, ready("False", late)), named("x", PLACED)])
    starts.note([named("new", placed_late, ready("True", "2027-01-15T13:02:00Z"))])
    assert starts.newest_s == (120.0,), "a flap is no start, and x has gone"


def test_a_pod_that_is_first_seen_while_its_readiness_flaps_is_no_start() -> None:
    starts = ColdStarts()
    starts.note([named("old", PLACED, ready("False", "2027-01-15T13:00:00Z"))])
    starts.note([named("old", PLACED, ready("True", "2027-01-15T13:02:00Z"))])
    assert starts.newest_s == ()


def test_of_many_starts_the_newest_are_told_and_each_once() -> None:
    starts = ColdStarts()
    found = [named(f"u{i}", PLACED, ready("False", BORN)) for i in range(30)]
    starts.note(found)
    for i in range(30):
        found[i] = named(f"u{i}", PLACED, ready("True", f"2027-01-15T08:00:{i:02}Z"))
        starts.note(found)
    assert starts.newest_s == tuple(range(10, 30))


def test_the_scheduler_is_quoted() -> None:
    assert unschedulable_message(pod(NO_GPU)) == NO_GPU["message"]
    assert unschedulable_message(pod(PLACED)) is None


def test_a_pod_that_has_ended_does_not_count() -> None:
    evicted = msgspec.structs.replace(
        pod(), status=msgspec.structs.replace(pod().status, phase="Failed")
    )
    assert not is_counted(evicted)
    assert is_counted(pod())


VARIANT: Json = {
    "name": "a", "target": {"name": "chat"}, "maxReplicas": 2, "slots": 1, "tokensPerSecond": 1
}  # fmt: skip
SPEC: Json = {"variants": [VARIANT], "maxReplicas": 2}


def scaler(name: str, reference: Json) -> Scaler:
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"scaleTargetRef": reference}}, Scaler
    )


def test_another_autoscaler_on_the_same_target_is_named() -> None:
    spec = pool_spec("chat", SPEC)
    other = scaler("x", {"kind": "Deployment", "name": "web"})
    assert conflict_with(spec, [("HorizontalPodAutoscaler", other)], []) is None
    mine = scaler("chat", {"kind": "Deployment", "name": "chat"})
    both = [("HorizontalPodAutoscaler", other), ("HorizontalPodAutoscaler", mine)]
    found = conflict_with(spec, both, [])
    assert found == "HorizontalPodAutoscaler/chat scales Deployment/chat too"
    keda = scaler("s", {"name": "chat"})
    assert conflict_with(spec, [("ScaledObject", keda)], []) is not None


def test_another_pool_on_the_same_target_is_named() -> None:
    spec = pool_spec("chat", SPEC)
    same = msgspec.convert({"metadata": {"name": "chat"}, "spec": SPEC}, Pool)
    twin = msgspec.convert({"metadata": {"name": "twin"}, "spec": SPEC}, Pool)
    broken = msgspec.convert({"metadata": {"name": "b"}, "spec": {"variants": [{}, 7]}}, Pool)
    assert conflict_with(spec, [], [same, broken]) is None
    assert conflict_with(spec, [], [same, twin]) == "ReplicaPool/twin scales Deployment/chat too"
