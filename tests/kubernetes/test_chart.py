"""The chart on a real API server: installed, scaled, upgraded, rolled back, uninstalled.

The namespace enforces Pod Security "restricted"; kwok's pods become ready without running.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi
from tests.kubernetes import objects
from tests.kubernetes.conftest import Scene, audited, eventually, install_definition
from tests.kubernetes.pod_fleet import PodFleet
from tests.kubernetes.release import Release
from tests.support.control_plane import ControlPlane
from tests.support.helm import CHART, Helm, helm

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "chart"  # its service accounts' calls are in the audit log
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
CI = sorted((CHART / "ci").glob("*-values.yaml"))
QUICK = {
    "upWindowSeconds": 1, "downWindowSeconds": 3, "downIntervalSeconds": 1,
    "guardWindowSeconds": 5, "drainDeadlineSeconds": 60, "respectManualSeconds": 0,
}  # fmt: skip


def values(fleet: PodFleet) -> dict[str, Any]:
    """One pool on GPUs that is scaled, one that is not; and what the tests' nodes can hold."""
    return {
        "poolDefaults": {"podAnnotations": {"test/cold-start": "1s"}},
        "pools": [
            {
                "name": "chat", "model": "chat", "port": fleet.port, "maxNumSeqs": 10,
                "gpu": {"count": 1}, "modelPath": "hub/chat",
                "capacity": {"tokensPerS": 1000, "coldStartS": 2},
                "autoscaling": {"enabled": True, "maxReplicas": 4, "spec": QUICK},
            },
            {"name": "cpu", "model": "SmolLM2-135M-Instruct"},
        ],
    }  # fmt: skip


@pytest.fixture
async def release(
    program: Helm, control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> AsyncIterator[Release]:
    """Of nothing yet: a namespace with its Secret, GPUs, and volumes for two claims."""
    await admin.create("/api/v1/nodes", objects.node("chart", 8))  # others hold the others'
    await admin.create(
        "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    )
    secret = {"key-pepper": "0123456789abcdef", "quota-url": "redis://quota:6379"}
    await admin.create(
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        {"metadata": {"name": "pandal"}, "stringData": secret},
    )
    for number in range(2):
        await admin.create("/api/v1/persistentvolumes", volume(f"chart-{number}"))
    yield Release(program, control_plane.kubeconfig("admin"), tmp_path, NAMESPACE)
    await admin.delete("/api/v1/nodes/chart")


def volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/tmp/{name}"}, "persistentVolumeReclaimPolicy": "Retain",
        },
    }  # fmt: skip


async def test_from_an_empty_namespace_and_back(
    release: Release, control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    fleet = PodFleet(admin, NAMESPACE, label_selector="pandal.dev/pool=chat")
    told = values(fleet)
    said = await release.run("install", "--wait", "--timeout", "240s", values=told)
    assert "http://r-pandal-gateway.chart.svc:80/v1" in said
    assert "Nobody may call it yet" in said, "the policy names no tenant"
    token = await _token(admin, "autoscaler")
    kubeconfig = control_plane.kubeconfig("autoscaler-chart", token)
    scene = Scene(
        admin, control_plane, NAMESPACE, kubeconfig, tmp_path, fleet, name="r-pandal-chat"
    )
    running = asyncio.create_task(fleet.run())
    try:
        process = await _installed_autoscaler(scene)
        await _scales(scene)
        await _upgrade_and_rollback(release, scene, told)
        await _hooks_run(release, told)
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0
        await _finds_replicas(scene)
        for component in ("autoscaler", "gateway"):
            used, denied = _asked(scene, component)
            assert denied == []
            assert used == await _rights(scene, component)
        await _uninstall(release, admin)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        for process in scene.processes:
            process.kill()
            process.wait()


async def _token(api: KubernetesApi, component: str) -> str:
    """Of the account that the chart made for it."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/r-pandal-{component}"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = msgspec.json.decode(await api.create(f"{account}/token", request))
    return str(answer["status"]["token"])


async def _installed_autoscaler(scene: Scene) -> subprocess.Popen[bytes]:
    """The program with the environment that its pod was given, but for where it runs."""
    variables = await _variables(scene, "autoscaler")
    told = {key.removeprefix("AUTOSCALER_").lower(): text for key, text in variables.items()}
    here = {"host": "127.0.0.1", "port": 0, "period_s": 0.4, "log_level": "debug"}
    return scene.start_autoscaler(**{**told, **here})


async def _variables(scene: Scene, component: str) -> dict[str, str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/r-pandal-{component}"
    found: dict[str, str] = (await scene.get(path))["data"]
    return found


async def _finds_replicas(scene: Scene) -> None:
    """A gateway with its pod's environment follows the pools' Services as its own account."""
    credentials = scene.folder / "credentials"
    credentials.mkdir()
    (credentials / "token").write_text(await _token(scene.api, "gateway"))
    (credentials / "ca.crt").write_bytes(scene.plane.ca.read_bytes())
    (scene.folder / "policies.json").write_text('{"version": 0}')
    here = {
        "GATEWAY_HOST": "127.0.0.1", "GATEWAY_PORT": "0",
        "GATEWAY_KUBERNETES_URL": scene.plane.server,
        "GATEWAY_KUBERNETES_CREDENTIALS": str(credentials),
        "GATEWAY_POLICY_FILE": str(scene.folder / "policies.json"),
        "GATEWAY_SPOOL_DIR": str(scene.folder / "spool"),
        "GATEWAY_KEY_PEPPER": "0123456789abcdef",
        "GATEWAY_QUOTA_URL": f"unix://{scene.folder}/nobody.sock",
    }  # fmt: skip
    told = await _variables(scene, "gateway")
    scene.processes.append(_started("gateway", {**told, **here}, scene.folder))

    async def follows() -> bool:
        return ("discovery.k8s.io", "endpointslices", "watch") in _asked(scene, "gateway")[0]

    await eventually(follows, "the gateway to watch")


def _started(service: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{service}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", service],
            stdout=log, stderr=log, env={**os.environ, **environment},
        )  # fmt: skip


async def _scales(scene: Scene) -> None:
    scene.fleet.rate_per_s = 4.0
    await scene.until(lambda status: status.get("ready") == 1, "the first replica to be seen")
    scene.fleet.rate_per_s = 60.0
    await scene.until_count(lambda count: count == 4, "up to what there may be")
    scene.fleet.rate_per_s = 3.0
    await scene.until_count(lambda count: count == 1, "down to one")
    assert scene.fleet.cut == []
    scene.fleet.rate_per_s = 60.0
    await scene.until_count(lambda count: count == 4, "up again")


async def _hooks_run(release: Release, told: dict[str, Any]) -> None:
    """kwok ends their pods; what they would have done is tested elsewhere."""
    assert "Succeeded" in await release.run("test", "--timeout", "60s")
    elsewhere = {**told, "billing": {"ledger": {"url": {"existingSecret": "pandal"}}}}
    await release.run("upgrade", "--wait", "--timeout", "240s", values=elsewhere)
    events = release.kubectl("get", "events", "-n", NAMESPACE, "-o", "name").stdout
    assert "r-pandal-ledger-upgrade" in events
    assert release.kubectl("get", "jobs", "-n", NAMESPACE, "-o", "name").stdout == ""


async def _upgrade_and_rollback(release: Release, scene: Scene, told: dict[str, Any]) -> None:
    """What is changed is rolled, what the autoscaler counts stays counted."""
    await _definition_is_applied_again(release)
    before = await _templates(scene)
    more = {**told, "gateway": {"settings": {"maxWaiting": 77}}}
    await release.run("upgrade", "--wait", "--timeout", "240s", values=more)
    after = await _templates(scene)
    assert {name for name in before if before[name] != after[name]} == {"r-pandal-gateway"}
    assert await scene.count() == 4
    await release.run("rollback", "1", "--wait", "--timeout", "240s")
    assert await _templates(scene) == before
    assert await scene.count() == 4
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/pandal"
    await scene.api.patch(secret, {"stringData": {"quota-url": "redis://elsewhere:6379"}})
    await release.run("upgrade", "--wait", "--timeout", "240s", values=told)
    after = await _templates(scene)
    rolled = {name for name in before if before[name] != after[name]}
    assert rolled == {"r-pandal-gateway", "r-pandal-billing"}, "both read it"


async def _definition_is_applied_again(release: Release) -> None:
    """As before an upgrade: Helm leaves definitions alone."""
    done = await asyncio.to_thread(
        release.kubectl, "apply", "--server-side", "-f", str(CHART / "crds")
    )
    assert done.returncode == 0, done.stderr


async def _templates(scene: Scene) -> dict[str, Any]:
    found = await scene.get(paths.collection("apps/v1", NAMESPACE, "deployments"))
    return {item["metadata"]["name"]: item["spec"]["template"] for item in found["items"]}


async def _rights(scene: Scene, component: str) -> set[tuple[str, str, str]]:
    role = await scene.get(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/r-pandal-{component}"
    )
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _asked(scene: Scene, component: str) -> tuple[set[tuple[str, str, str]], list[str]]:
    """What it asked the API server for, and what was denied, by the audit log."""
    used, denied = set(), []
    account = f"system:serviceaccount:{NAMESPACE}:r-pandal-{component}"
    for entry in audited(scene.plane):
        if entry["user"]["username"] != account or "objectRef" not in entry:
            continue
        reference = entry["objectRef"]
        if "resource" in reference:
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            used.add((reference.get("apiGroup", ""), resource, entry["verb"]))
            if entry["annotations"]["authorization.k8s.io/decision"] != "allow":
                denied.append(entry["requestURI"])
    return used, denied


async def _uninstall(release: Release, api: KubernetesApi) -> None:
    """The definition stays, and what bills are made of: the claims say so."""
    await release.run("uninstall", "--wait", "--timeout", "240s")

    async def are_gone() -> bool:
        found = msgspec.json.decode(await api.get(paths.pods(NAMESPACE)))
        return not found["items"]

    await eventually(are_gone, "the pods to be gone")
    kinds = release.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").stdout

    async def are_left() -> bool:
        left = await asyncio.to_thread(
            release.kubectl, "get", ",".join(kinds.split()), "-n", NAMESPACE, "-o", "name",
            "--ignore-not-found", "-l", "app.kubernetes.io/instance=r",
        )  # fmt: skip
        assert left.returncode == 0, left.stderr
        return left.stdout.split() == [
            "persistentvolumeclaim/r-pandal-ledger", "persistentvolumeclaim/r-pandal-spool",
        ]  # fmt: skip

    await eventually(are_left, "the claims to be all that is left")  # slices go after services
    leases = msgspec.json.decode(await api.get(paths.leases(NAMESPACE)))
    assert leases["items"] == []


async def test_helm_3_installs_and_uninstalls_too(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    """Of other people's servers: no pools, and volumes that end with their pods."""
    await admin.create("/api/v1/namespaces", {"metadata": {"name": "three", "labels": RESTRICTED}})
    old = helm(3, tmp_path)
    place = ("-n", "three", "--kubeconfig", str(control_plane.kubeconfig("admin")))
    files = ("-f", str(CHART / "ci" / "external-values.yaml"))
    emptied = (
        "--set",
        "usage.transport=kafka,usage.kafka.bootstrap=k:9092,usage.spool.kind=emptyDir",
    )
    held = ("--set", "billing.ledger.url.existingSecret=ledger")
    wait = ("--wait", "--timeout", "240s")
    await asyncio.to_thread(
        old.run, "install", "r", str(CHART), *files, *emptied, *held, *wait, *place
    )
    history = await asyncio.to_thread(old.run, "history", "r", "-o", "json", *place)
    assert [entry["status"] for entry in json.loads(history.stdout)] == ["deployed"]
    await asyncio.to_thread(old.run, "uninstall", "r", "--wait", *place)
    left = await admin.get(paths.collection("apps/v1", "three", "deployments"))
    assert msgspec.json.decode(left)["items"] == []


OPERATORS = (
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
)


async def test_the_api_server_takes_every_scenario_strictly(
    program: Helm, control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    """Server-side, and nothing is stored: a field that it does not know is refused."""
    await admin.create("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": RESTRICTED}})
    for operator in OPERATORS:
        await install_definition(admin, *operator)
    release = Release(program, control_plane.kubeconfig("admin"), tmp_path, "strict")
    for path in CI:
        rendered = yaml.safe_dump_all(program.template([path], "--namespace", "strict"))
        done = await asyncio.to_thread(
            release.kubectl, "apply", "--server-side", "--dry-run=server", "--validate=strict",
            "-n", "strict", "-f", "-", text=rendered,
        )  # fmt: skip
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert "Warning" not in done.stderr, f"{path.name}: {done.stderr}"


async def test_the_definition_refuses_a_pool_that_makes_no_sense(
    program: Helm, control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    await admin.create("/api/v1/namespaces", {"metadata": {"name": "refused"}})
    release = Release(program, control_plane.kubeconfig("admin"), tmp_path, "refused")
    scaled = {"enabled": True, "spec": {"urgency": 7}}
    bad = {"pools": [{"name": "a", "model": "m", "autoscaling": scaled}]}
    with pytest.raises(AssertionError, match="urgency"):
        await release.run("install", values=bad)
