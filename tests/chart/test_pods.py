"""What is true of every pod, in every scenario: rights, secrets, ends, starts, names, rolls."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoscaler.kubernetes.resource import pool_spec
from billing.ledger import Ledger
from contracts.policy import decode_policy_document
from tests.chart import manifests
from tests.chart.conftest import Written
from tests.chart.test_rendering import CI, scenario
from tests.support.helm import CHART, Helm, objects_of

Objects = list[dict[str, Any]]


@pytest.fixture(scope="module", params=CI, ids=scenario)
def objects(request: pytest.FixtureRequest, helm4: Helm) -> Objects:
    return helm4.template([request.param])


def test_every_pod_keeps_to_restricted(objects: Objects) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    for name, _, spec in manifests.pod_specs(objects):
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for container in manifests.containers(spec):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False, name
            assert rights["readOnlyRootFilesystem"] is True, name
            assert rights["capabilities"] == {"drop": ["ALL"]}, name
        assert all("hostPath" not in volume for volume in spec.get("volumes", ())), name


def test_no_pod_is_told_of_its_neighbours_services(objects: Objects) -> None:
    """GATEWAY_PORT=tcp://10.0.0.1:80 is what Kubernetes tells beside a Service named gateway."""
    for name, _, spec in manifests.pod_specs(objects):
        assert spec["enableServiceLinks"] is False, name


def test_a_token_is_for_who_has_rights(objects: Objects) -> None:
    bindings = manifests.of_kind(objects, "RoleBinding")
    bound = {subject["name"] for binding in bindings for subject in binding["subjects"]}
    for name, _, spec in manifests.pod_specs(objects):
        has_rights = spec.get("serviceAccountName") in bound
        assert spec["automountServiceAccountToken"] is has_rights, name
    assert not manifests.of_kind(objects, "ClusterRole", "ClusterRoleBinding")


def test_the_grace_is_longer_than_what_a_pod_may_need(objects: Objects) -> None:
    for name, metadata, spec in manifests.pod_specs(objects):
        container = spec["containers"][0]
        if metadata["labels"]["app.kubernetes.io/component"] not in {"gateway", "replica"}:
            continue
        sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        told = manifests.environment(objects, spec)
        told_s = told.get("GATEWAY_DRAIN_TIMEOUT_S") or told.get("REPLICA_DRAIN_TIMEOUT_S")
        arguments = container.get("args", [])
        if "--shutdown-timeout" in arguments:
            told_s = arguments[arguments.index("--shutdown-timeout") + 1]
        drain_s = float(told_s or 600)
        assert spec["terminationGracePeriodSeconds"] > sleep_s + drain_s, name


def test_a_start_may_take_its_time(objects: Objects) -> None:
    for name, metadata, spec in manifests.pod_specs(objects):
        if metadata["labels"]["app.kubernetes.io/component"] == "replica":
            probe = spec["containers"][0]["startupProbe"]
            assert probe["periodSeconds"] * probe["failureThreshold"] >= 600, name


def test_selectors_select_what_they_are_for(objects: Objects) -> None:
    pods = [(m["labels"], spec) for _, m, spec in manifests.pod_specs(objects)]
    for found in manifests.of_kind(objects, "Deployment"):
        wanted = found["spec"]["selector"]["matchLabels"]
        assert sum(wanted.items() <= labels.items() for labels, _ in pods) == 1
        assert "app.kubernetes.io/version" not in wanted, "a selector cannot be changed"
    for found in manifests.of_kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = found["spec"]
        wanted = spec.get("podSelector") or spec["selector"]
        wanted = wanted.get("matchLabels", wanted)
        if found["kind"] != "NetworkPolicy":
            assert any(wanted.items() <= labels.items() for labels, _ in pods), found["metadata"]


def test_names_fit_and_are_used_once(objects: Objects) -> None:
    keys = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(keys)) == len(keys)
    for _, name in keys:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", name), name


def test_what_a_pod_reads_is_there_or_is_someone_elses(objects: Objects) -> None:
    ours = {(o["kind"], o["metadata"]["name"]) for o in objects}
    elsewhere = {"tenants", "models"}
    for name, _, spec in manifests.pod_specs(objects):
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                told = volume["configMap"]["name"]
                assert ("ConfigMap", told) in ours or told in elsewhere, name
            if "persistentVolumeClaim" in volume:
                told = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", told) in ours or told in elsewhere, name
        account = spec.get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in ours, name
        mounts = {m["name"] for c in manifests.containers(spec) for m in c.get("volumeMounts", ())}
        assert mounts == {volume["name"] for volume in spec.get("volumes", ())}, name


def test_nothing_secret_is_rendered(objects: Objects) -> None:
    assert not manifests.of_kind(objects, "Secret")


def test_the_hook_makes_a_ledger_that_billing_takes(helm4: Helm, tmp_path: Path) -> None:
    """Its command, run here: on a ledger that is not there, and again on the one that is."""
    (everything,) = (path for path in CI if scenario(path) == "everything")
    (job,) = manifests.of_kind(helm4.template([everything]), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    url = f"sqlite:///{tmp_path}/ledger.db"
    for _ in range(2):
        assert _upgraded([sys.executable, *container["command"][1:]], url).returncode == 0
    Ledger(url).close()
    refused = _upgraded([sys.executable, *container["command"][1:]], "mysql://u:hunter2@h/d")
    assert refused.returncode in {1, 2}
    assert "ledger" in refused.stderr
    assert "hunter2" not in refused.stderr


def _upgraded(command: list[str], url: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BILLING_LEDGER_URL": url, "BILLING_POLL_INTERVAL_S": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_what_billing_is_told_its_hook_is_told_too(helm4: Helm, written: Written) -> None:
    told = {
        "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/ca/ca.pem"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "podAnnotations": {"a": "b"},
        "priorityClassName": "high",
        "resources": {"requests": {"cpu": "1"}},
        "ledger": {"url": {"existingSecret": "b"}},
    }
    (job,) = manifests.of_kind(helm4.template(written({"billing": told})), "Job")
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert template["spec"]["priorityClassName"] == "high"
    assert "topologySpreadConstraints" not in template["spec"], "it is one pod"
    assert told["extraVolumes"][0] in template["spec"]["volumes"]
    (container,) = template["spec"]["containers"]
    assert told["extraEnv"][0] in container["env"]
    assert told["extraVolumeMounts"][0] in container["volumeMounts"]
    assert container["resources"] == told["resources"]


def test_a_download_is_told_what_the_engine_is_and_has_its_time(
    helm4: Helm, written: Written
) -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    file = {**FILE, "sizeBytes": 40_000_000_000}
    pool = {"name": "a", "model": "m", "downloads": [file], "extraEnv": [proxy]}
    objects = helm4.template(written({"pools": [pool]}))
    spec = manifests.one(objects, "Deployment", "r-pandal-a")["spec"]
    (download,) = spec["template"]["spec"]["initContainers"]
    assert proxy in download["env"]
    assert spec["progressDeadlineSeconds"] == 600 + 2 * 300 + 2000


def test_the_charts_own_test_gets_through(helm4: Helm, written: Written) -> None:
    """Whoever else may: the test is a client."""
    objects = helm4.template(written({"networkPolicy": {"clients": []}}))
    policy = manifests.one(objects, "NetworkPolicy", "r-pandal-gateway")
    let_in = [peer["podSelector"]["matchLabels"] for peer in policy["spec"]["ingress"][0]["from"]
              if "podSelector" in peer]  # fmt: skip
    test = manifests.one(objects, "Pod", "r-pandal-stream-test")["metadata"]["labels"]
    assert any(wanted.items() <= test.items() for wanted in let_in)


@pytest.mark.parametrize(("least", "path"), [(0, "/health"), (1, "/ready")])
def test_a_gateway_without_replicas_is_asked_where_that_wakes_them(
    helm4: Helm, written: Written, least: int, path: str
) -> None:
    pool = {"name": "a", "model": "m", "autoscaling": {"enabled": True, "minReplicas": least}}
    objects = helm4.template(written({"pools": [pool]}))
    gateway = manifests.one(objects, "Deployment", "r-pandal-gateway")
    probe = gateway["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["path"] == path
    (scaled,) = manifests.of_kind(objects, "ReplicaPool")
    assert pool_spec("a", scaled["spec"]).min_replicas == least


def test_a_route_lasts_as_long_as_the_longest_answer(helm4: Helm, written: Written) -> None:
    gateway = {"httpRoute": {"enabled": True}, "settings": {"answerTimeoutS": 7200.5}}
    (route,) = manifests.of_kind(helm4.template(written({"gateway": gateway})), "HTTPRoute")
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "7201s", "backendRequest": "7201s"}


LONG = {
    "fullnameOverride": "a" * 60,
    "pools": [{"name": f"{'b' * 38}-{i}", "model": "m"} for i in range(2)],
}


def test_long_names_are_cut_and_stay_apart(helm4: Helm, written: Written) -> None:
    names = [
        o["metadata"]["name"]
        for o in manifests.of_kind(helm4.template(written(LONG)), "Deployment")
    ]
    assert len(set(names)) == 4
    assert all(len(name) <= 63 for name in names)


FILE = {"url": "https://h/m.gguf", "path": "m.gguf", "sizeBytes": 1}


@pytest.mark.parametrize(
    ("values", "rolled"),
    [
        ({"gateway": {"settings": {"maxWaiting": 5}}}, {"gateway"}),
        ({"poolDefaults": {"settings": {"maxNumWaiting": 5}}}, {"replica"}),
        ({"billing": {"settings": {"pollIntervalS": 5}}}, {"billing"}),
        ({"autoscaler": {"settings": {"periodS": 5}}}, {"autoscaler"}),
        ({"poolDefaults": {"downloads": [FILE]}}, {"replica"}),
        ({"gateway": {"policies": {"document": {"version": 9, "tenants": []}}}}, set()),
    ],
    ids=str,
)
def test_a_change_rolls_who_reads_it_and_nobody_else(
    helm4: Helm, written: Written, values: dict[str, Any], rolled: set[str]
) -> None:
    """Policies are followed live: a stream need not end for a new tenant."""
    base = written({"poolDefaults": {"autoscaling": {"enabled": True}}})
    before = _annotations(helm4.template(base))
    after = _annotations(helm4.template([*base, *written(values)]))
    assert {name for name in before if before[name] != after[name]} == rolled


def _annotations(objects: Objects) -> dict[str, Any]:
    return {
        metadata["labels"]["app.kubernetes.io/component"]: metadata["annotations"]
        for name, metadata, _ in manifests.pod_specs(objects)
        if name.startswith("Deployment/")
    }


def test_a_new_version_of_the_chart_alone_rolls_nobody(helm4: Helm, tmp_path: Path) -> None:
    """A replica on GPUs takes minutes to start: only what it runs may roll it."""
    newer = tmp_path / "pandal"
    shutil.copytree(CHART, newer)
    chart = newer / "Chart.yaml"
    chart.write_text(chart.read_text().replace("version: 0.1.0\nappV", "version: 0.1.9\nappV"))
    before = helm4.template()
    after = objects_of(helm4.run("template", "r", str(newer), "-n", "ns").stdout)
    assert "0.1.9" in str(after)
    assert _templates(before) == _templates(after)


def _templates(objects: Objects) -> list[Any]:
    return [o["spec"]["template"] for o in manifests.of_kind(objects, "Deployment")]


def test_policies_are_a_document_that_the_gateway_reads(objects: Objects) -> None:
    for found in manifests.of_kind(objects, "ConfigMap"):
        if found["metadata"]["name"].endswith("-policies"):
            decode_policy_document(found["data"]["policies.json"].encode())


def test_a_count_that_someone_scales_is_not_written(helm4: Helm) -> None:
    (path,) = (path for path in CI if scenario(path) == "everything")
    deployments = manifests.of_kind(helm4.template([Path(path)]), "Deployment")
    counted = {d["metadata"]["name"] for d in deployments if "replicas" in d["spec"]}
    assert counted == {"llm-admin", "llm-autoscaler", "llm-billing"}
