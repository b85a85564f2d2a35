"""Values of pools of replicas: a list, of which ``pandal plan --values`` writes an item."""

from typing import Annotated, Final, Literal

from pydantic import Field

from pandal.chart.settings_fields import settings_values
from pandal.chart.shared_values import (
    Disruption,
    Group,
    Image,
    Object,
    OptionalName,
    Placement,
    Quantity,
    SecretKey,
    Volume,
)
from pandal.planner.precision import Precision
from replica.settings import Settings

MANAGED: Final = {
    "host": "every address of the pod",
    "port": "pools[].port",
    "model": "pools[].modelPath, else pools[].model",
    "model_cache_dir": "pools[].modelVolume",
    "compile_cache_dir": "pools[].modelVolume",
    "served_model_name": "pools[].model",
    "device": "pools[].gpu.count",
    "max_num_seqs": "pools[].maxNumSeqs",
    "drain_timeout_s": "pools[].drain.timeoutS",
    "usage_journal_dir": "pools[].journalVolume",
}


class ReplicaSettings(
    settings_values("ReplicaSettings", Settings, without=MANAGED)  # type: ignore[misc] # made
):
    """All but what the chart decides."""


PoolName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]


class Gpu(Group):
    type: str = Field("", description="A label of the pods; where they go is nodeSelector's matter")
    count: int = Field(0, ge=0, description="Of one replica: its tensor-parallel degree")
    resource: str = Field("nvidia.com/gpu", description="What the device plugin calls it")


class Images(Group):
    pandal: Image = Image(repository="pandal/replica")
    vllm: Image = Image(repository="vllm/vllm-openai", tag="v0.33.0")
    sglang: Image = Image(repository="lmsysorg/sglang", tag="v0.5.23")


class Capacity(Group):
    """What the autoscaler begins with, until it has learned better."""

    tokens_per_s: float = Field(1000.0, gt=0, description="Work of a full replica")
    cold_start_s: float = Field(
        300.0, ge=0, le=86_400, description="From pod to ready; startup probes wait twice as long"
    )
    cost_usd_per_h: float = Field(1.0, gt=0, description="Of one replica; only ratios matter")


class Download(Group):
    """Files that an init container fetches before the engine starts, each checked."""

    url: str = Field(pattern="^https?://", description="Of the file")
    path: str = Field(pattern=r"^[^/.][A-Za-z0-9_./-]*$", description="In the model volume")
    size_bytes: int = Field(ge=0, description="What comes must have it, to the byte")
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    uses_hub_token: bool = Field(False, description="hubToken goes with the request; https alone")


class ReplicaDrain(Group):
    pre_stop_s: int = Field(15, ge=0, description="Routers see it leave meanwhile")
    timeout_s: int = Field(600, ge=0, description="Then streams that still run are ended")


class Autoscaling(Group):
    """Of a ReplicaPool; anything else of its spec goes into ``spec``."""

    enabled: bool = Field(False, description="Else replicas is what there is")
    min_replicas: int = Field(1, ge=0, le=10_000)
    max_replicas: int = Field(4, ge=1, le=10_000)
    spec: Object = Field({}, description="More of a ReplicaPool's spec, as kubectl explain tells")


class PoolDefaults(Placement):
    """What a pool does not say itself."""

    engine: Literal["auto", "pandal", "vllm", "sglang"] = Field(
        "auto", description="auto: vllm where there are GPUs, else pandal"
    )
    images: Images = Images()
    model_path: str = Field(
        "", description="Where the model lies, or what a hub calls it; empty: found by its name"
    )
    precision: Precision = Field(Precision.BF16, description="Of a foreign engine's weights")
    kv_precision: Precision = Field(Precision.BF16, description="Of a foreign engine's KV cache")
    replicas: int = Field(1, ge=0, description="Not written where the pool is autoscaled")
    port: int = Field(8000, ge=1024, le=65_535)
    max_num_seqs: int = Field(32, ge=1, description="Requests that run together on one replica")
    gpu: Gpu = Gpu()
    shared_memory: Quantity = Field("8Gi", description="/dev/shm of engines on several GPUs")
    capacity: Capacity = Capacity()
    model_volume: Volume = Field(
        Volume(kind="emptyDir", size="50Gi"), description="Models, and code compiled for them"
    )
    journal_volume: Volume = Field(
        Volume(kind="emptyDir", size="1Gi"), description="The second witness of what was used"
    )
    downloads: list[Download] = Field([], description="Before the engine starts")
    hub_token: SecretKey = Field(
        SecretKey(key="hub-token"), description="Of foreign engines, and of downloads that say so"
    )
    drain: ReplicaDrain = ReplicaDrain()
    autoscaling: Autoscaling = Autoscaling()
    disruption: Disruption = Disruption()
    rollout: Literal["surge", "replace"] = Field(
        "surge", description="replace: where there is no GPU for one more than there shall be"
    )
    extra_args: list[str] = Field([], description="Of foreign engines")
    runtime_class_name: OptionalName = ""
    run_as_user: int = Field(10001, ge=1, description="Never root: the namespace may refuse it")
    settings: ReplicaSettings = Field(
        ReplicaSettings(), description="Every other setting of our own engine"
    )


class Pool(PoolDefaults):
    """One model on one kind of replica: a Deployment, and a ReplicaPool where it is autoscaled."""

    name: PoolName = Field(description="Unique in the release")
    model: str = Field(min_length=1, description="The name that clients ask for")
