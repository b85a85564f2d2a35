"""Where the API server has what (pure)."""

from typing import Final

from autoscaler.kubernetes.names import API_VERSION, PLURAL

PODS: Final = "pods"


def api(api_version: str) -> str:
    """``v1`` is the one group without a name."""
    return f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"


def collection(api_version: str, namespace: str, plural: str) -> str:
    return f"{api(api_version)}/namespaces/{namespace}/{plural}"


def pods(namespace: str) -> str:
    return collection("v1", namespace, PODS)


def pools(namespace: str) -> str:
    return collection(API_VERSION, namespace, PLURAL)


def leases(namespace: str) -> str:
    return collection("coordination.k8s.io/v1", namespace, "leases")


def events(namespace: str) -> str:
    return collection("events.k8s.io/v1", namespace, "events")


def scalers(namespace: str) -> tuple[tuple[str, str], ...]:
    """Whatever else scales, by kind; the second's kind exists only where KEDA is installed."""
    return (
        (
            "HorizontalPodAutoscaler",
            collection("autoscaling/v2", namespace, "horizontalpodautoscalers"),
        ),
        ("ScaledObject", collection("keda.sh/v1alpha1", namespace, "scaledobjects")),
    )
