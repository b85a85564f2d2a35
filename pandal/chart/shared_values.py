"""Values that several components have: images, resources, placement, secrets, and how pods end."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from pandal.chart.settings_fields import STRICT

Object = dict[str, Any]  # passed on to Kubernetes, which checks it
Quantity = Annotated[str, Field(pattern=r"^[0-9.]+(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
OptionalName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)]

OptionalLabel = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=63)]


class Group(BaseModel):
    """A group of values; a key that it does not know is refused."""

    model_config = STRICT


class Image(Group):
    repository: str = Field("", description="With its registry, unless imageRegistry names one")
    tag: str = Field("", description="Empty: the chart's appVersion")
    digest: str = Field(
        "",
        pattern="^(sha256:[0-9a-f]{64})?$",
        description="Wins over the tag",
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"


class SecretKey(Group):
    """No secret is ever a value: the chart only names where it lies."""

    existing_secret: OptionalName = Field("", description="A Secret; empty: there is none")
    key: str = Field("", description="The key in it")


class ServiceAccount(Group):
    create: bool = Field(True, description="Or name one that is there")
    name: OptionalName = Field("", description="Empty: made of the release's name")
    annotations: dict[str, str] = Field({}, description="Of cloud identities, for example")


class Disruption(Group):
    enabled: bool = Field(True, description="A PodDisruptionBudget, where more than one pod runs")
    max_unavailable: int = Field(1, ge=1, description="Pods that a drain of nodes may take at once")


class Placement(Group):
    """Of every kind of pod."""

    resources: Object = Field({}, description="Requests and limits of the main container")
    node_selector: dict[str, str] = {}
    tolerations: list[Object] = []
    affinity: Object = {}
    topology_spread: bool = Field(True, description="Evenly over zones and nodes, if possible")
    priority_class_name: str = ""
    pod_annotations: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    extra_env: list[Object] = Field([], description="As in a container, beside the settings")
    extra_volumes: list[Object] = []
    extra_volume_mounts: list[Object] = []


class Volume(Group):
    """Of a PersistentVolumeClaim, or one that is there, or one that ends with the pod."""

    kind: Literal["claim", "existingClaim", "emptyDir"] = Field(
        "claim", description="emptyDir ends with its pod"
    )
    existing_claim: OptionalName = ""
    size: Quantity = "10Gi"
    storage_class: str = Field("", description="Empty: the cluster's default")
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"
    keep: bool = Field(True, description="After an uninstall")
