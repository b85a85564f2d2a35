"""The autoscaler as its own process and identity, over real Deployments on too few GPUs."""

import json

import pytest
import yaml

from autoscaler.kubernetes import paths
from tests.kubernetes import objects
from tests.kubernetes.conftest import SceneOf

NUM_GPUS = 6
pytestmark = pytest.mark.timeout(180)


async def test_up_and_down_with_a_load_on_too_few_gpus(scene_of: SceneOf) -> None:
    scene = await scene_of(namespace="fleet", cold_start_s=1.0)
    process = scene.start_autoscaler()
    scene.fleet.rate_per_s = 4.0
    await scene.until(lambda status: status.get("ready") == 1, "the first replica to be seen")

    scene.fleet.rate_per_s = 60.0
    await scene.until(
        lambda status: any(
            v["ready"] == NUM_GPUS and v["unschedulable"] > 0 for v in status.get("variants", ())
        ),
        "all GPUs in use, and what does not fit said",
    )
    assert await scene.condition("Schedulable") == ("False", "Unschedulable")
    pool = await scene.pool()
    told = next(c for c in pool["status"]["conditions"] if c["type"] == "Schedulable")
    assert f"Insufficient {objects.GPU}" in told["message"]
    assert scene.fleet.most_at_once <= 8, "what waits for GPUs is not ordered again"

    scene.fleet.rate_per_s = 3.0
    await scene.until_count(lambda count: count == 1, "down to one")
    assert scene.fleet.cut == []
    assert any(word.startswith("PUT") for word in scene.fleet.cordons)
    await scene.until_condition("Acting", ("True", "Acting"))

    process.terminate()
    assert process.wait() == 0
    await _assert_resigned_and_told(scene)
    _assert_rules_are_what_is_used(scene)


async def _assert_resigned_and_told(scene: object) -> None:
    lease = await scene.get(f"{paths.leases(scene.namespace)}/pandal-autoscaler")
    assert lease["spec"]["holderIdentity"] == ""
    events = (await scene.get(paths.events(scene.namespace)))["items"]
    told = {e["reason"] for e in events if e["regarding"]["kind"] == "ReplicaPool"}
    assert {"ScaledUp", "ScaledDown"} <= told


def _assert_rules_are_what_is_used(scene: object) -> None:
    """Every permission was needed, and nothing was denied."""
    used, denied = set(), []
    for line in scene.plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        if "objectRef" not in entry or "resource" not in entry["objectRef"]:
            continue
        reference = entry["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        used.add((reference.get("apiGroup", ""), resource, entry["verb"]))
        if entry["annotations"]["authorization.k8s.io/decision"] != "allow":
            denied.append(entry["requestURI"])
    allowed = {
        (group, resource, verb)
        for rule in yaml.safe_load(objects.RULES.read_text())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert denied == []
    assert used == allowed
