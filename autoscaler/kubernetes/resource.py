"""The ``spec`` of a ReplicaPool: the pool's policy, and where Kubernetes has what it speaks of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from autoscaler.errors import BadPolicy
from autoscaler.kubernetes.wire import from_wire
from autoscaler.policy import PoolPolicy, Variant


@dataclass(frozen=True, slots=True)
class Target:
    """Anything with a scale subresource whose pods its owner deletes by their deletion cost."""

    name: str
    api_version: str = "apps/v1"
    kind: str = "Deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVariant(Variant):
    target: Target


@dataclass(frozen=True, slots=True)
class GatewaySource:
    """The gateway's pods, each asked for its own counters."""

    label_selector: str
    port: int = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec(PoolPolicy):
    variants: tuple[TargetVariant, ...]
    metrics_port: int = 8000
    gateway: GatewaySource | None = None
    drain_deadline_s: float = 600.0
    is_dry_run: bool = False


NOT_IN_SPEC: Final = frozenset({"name", "is_told_by_gateway"})


def pool_spec(name: str, spec: Mapping[str, object]) -> PoolSpec:
    """Raises BadPolicy."""
    is_told = spec.get("gateway") is not None
    found = from_wire(PoolSpec, spec, name=name, is_told_by_gateway=is_told)
    assert isinstance(found, PoolSpec), "what was asked for"
    targets = {variant.target for variant in found.variants}
    if len(targets) != len(found.variants):
        raise BadPolicy(f"{name}: each variant needs a target of its own")
    return found
