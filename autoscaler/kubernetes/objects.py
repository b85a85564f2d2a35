"""What is read of Kubernetes' objects: the few fields that a decision needs, decoded strictly.

Fields that are not named here are skipped unread, which is what makes a thousand pods cheap.
https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.35/
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from autoscaler.errors import ClusterRefused

T = TypeVar("T")


def decoded(body: bytes | msgspec.Raw, wanted: type[T]) -> T:
    """Raises ClusterRefused: whoever answered so, a proxy maybe, is no API server."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.DecodeError as exc:
        raise ClusterRefused(f"{wanted.__name__}: {exc}") from exc


class Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Spelled as Kubernetes spells it."""


class Metadata(Struct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    annotations: Mapping[str, str] = {}


class PodCondition(Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Waiting(Struct, frozen=True, kw_only=True):
    reason: str = ""


class ContainerState(Struct, frozen=True, kw_only=True):
    waiting: Waiting | None = None


class ContainerStatus(Struct, frozen=True, kw_only=True):
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, kw_only=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def condition(self, type_: str) -> PodCondition | None:
        return next((found for found in self.conditions if found.type == type_), None)


class Pod(Struct, frozen=True, kw_only=True):
    metadata: Metadata
    status: PodStatus = PodStatus()


class ScaleSpec(Struct, frozen=True, kw_only=True):
    replicas: int = 0  # Kubernetes leaves a zero out


class ScaleStatus(Struct, frozen=True, kw_only=True):
    replicas: int = 0
    selector: str = ""


class Scale(Struct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class TargetReference(Struct, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    api_version: str = ""


class ScalerSpec(Struct, frozen=True, kw_only=True):
    scale_target_ref: TargetReference = TargetReference()


class Scaler(Struct, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler, or KEDA's ScaledObject: both name their target alike."""

    metadata: Metadata
    spec: ScalerSpec = ScalerSpec()


class Order(Struct, frozen=True, kw_only=True):
    written: int | None = None
    writing: int | None = None


class KnownVariant(Struct, frozen=True, kw_only=True):
    name: str
    tokens_per_second: float | None = None
    cold_starts_seconds: tuple[float, ...] = ()


class KnownStatus(Struct, frozen=True, kw_only=True):
    """What the autoscaler reads of its own notes."""

    variants: tuple[KnownVariant, ...] = ()
    decided_by: str = ""
    orders: Mapping[str, Order] = {}
    conditions: tuple[PodCondition, ...] = ()


class Pool(Struct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: dict[str, object] = {}
    status: KnownStatus = KnownStatus()


class LeaseSpec(Struct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


class LabelledMetadata(Metadata, frozen=True, kw_only=True):
    """Of what is written whole: others know their objects by labels."""

    labels: Mapping[str, str] = {}


class Lease(Struct, frozen=True, kw_only=True):
    metadata: LabelledMetadata
    spec: LeaseSpec = LeaseSpec()


class HasMetadata(Struct, frozen=True, kw_only=True):
    metadata: Metadata


Item = TypeVar("Item", Pod, Pool, Scaler)


class ListMetadata(Struct, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Listed(Struct, Generic[Item], frozen=True, kw_only=True):
    metadata: ListMetadata
    items: tuple[Item, ...] = ()


class Notice(Struct, frozen=True, kw_only=True):
    """One line of a watch; the object is decoded when its type is known."""

    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


class Failure(Struct, frozen=True, kw_only=True):
    """A ``Status``: why a call was refused, or a watch ended."""

    code: int = 0
    reason: str = ""
