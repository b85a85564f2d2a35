"""Objects as a chart would write them, shortened for tests."""

from pathlib import Path

import yaml

from autoscaler.kubernetes import names
from autoscaler.kubernetes.wire import Json

RULES = Path(__file__).parents[2] / "helm" / "pandal" / "files" / "autoscaler-rules.yaml"
GPU = "nvidia.com/gpu"
CONTAINER: Json = {"name": "engine", "image": "engine", "resources": {"limits": {GPU: "1"}}}


def node(name: str, num_gpus: int) -> Json:
    amounts = {"cpu": "640", "memory": "512Gi", "pods": "1100", GPU: str(num_gpus)}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": amounts, "capacity": amounts},
    }  # fmt: skip


def deployment(
    name: str, replicas: int, *, cold_start_s: float, stops_after_s: float = 0.5
) -> Json:
    labels = {"app": name}
    times = {"test/cold-start": f"{cold_start_s}s", "test/stops-after": f"{stops_after_s}s"}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": times},
                "spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": 600},
            },
        },
    }  # fmt: skip


def unplaced_pod(name: str, app: str) -> Json:
    """Nobody's, and no scheduler's: with the account that is there from the beginning."""
    spec = {
        "containers": [CONTAINER], "serviceAccountName": "autoscaler", "schedulerName": "nobody"
    }  # fmt: skip
    return {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec}


def pool(name: str, **changes: object) -> Json:
    """Quick to decide: windows of seconds."""
    variant = {
        "name": "h200", "target": {"name": name}, "maxReplicas": 8, "slots": 10,
        "tokensPerSecond": 1000, "coldStartSeconds": 2,
    }  # fmt: skip
    spec: Json = {
        "variants": [variant], "minReplicas": 1, "maxReplicas": 8,
        "upWindowSeconds": 1, "downWindowSeconds": 3, "downIntervalSeconds": 1,
        "guardWindowSeconds": 5, "drainDeadlineSeconds": 60, "respectManualSeconds": 4,
    }  # fmt: skip
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND,
        "metadata": {"name": name}, "spec": {**spec, **changes},
    }  # fmt: skip


def horizontal_pod_autoscaler(name: str) -> Json:
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1, "maxReplicas": 3,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}
                    },
                }
            ],
        },
    }  # fmt: skip


def role() -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "autoscaler"}, "rules": yaml.safe_load(RULES.read_text()),
    }  # fmt: skip


def role_binding(namespace: str) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "autoscaler"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "autoscaler"
        },
        "subjects": [{"kind": "ServiceAccount", "name": "autoscaler", "namespace": namespace}],
    }  # fmt: skip


def loose_definition(group: str, version: str, kind: str, plural: str) -> Json:
    """As far as the API server must know a kind that an operator brings."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version, "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }  # fmt: skip
