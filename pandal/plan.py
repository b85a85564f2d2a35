"""What ``pandal up`` was asked for, and what the checks made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from billing.kafka_wiring import KafkaAccess
from pandal.datadir import DataDir
from pandal.http_client import Address
from replica.engine.messages import KvCacheDtype, Precision

HOST = "127.0.0.1"  # a demo key and no TLS: nothing here may be reached from elsewhere
DEFAULT_ALIAS = "default"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class UpOptions:
    model: str
    num_replicas: int
    precision: Precision
    kv_cache_dtype: KvCacheDtype
    port: int
    data_dir: DataDir
    is_once: bool
    dev_replica_urls: tuple[str, ...]
    kafka_bootstrap: str | None
    model_cache: Path | None  # None: where replicas look by themselves
    kafka_access: KafkaAccess | None = None  # how those brokers are spoken to
    adapters: Mapping[str, Path] = field(default_factory=dict)  # folders by name, for own replicas
    autoscale_to: int | None = None  # most replicas; None: as many as at the beginning, always


@dataclass(frozen=True, slots=True)
class OwnReplica:
    """A model server that the launcher starts."""

    name: str
    port: int

    @property
    def address(self) -> Address:
        return Address(HOST, self.port)


@dataclass(frozen=True, slots=True)
class DevReplica:
    """A model server that somebody else runs."""

    name: str
    address: Address


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Checked, and nothing started yet."""

    data_dir: DataDir
    gateway: Address
    admin: Address | None  # of the admin API; None: there is none, for one request
    valkey_binary: Path
    model: str  # a name or a path, for the replicas to resolve
    model_cache: Path | None
    served_model: str  # what clients and price books call it
    own_replicas: tuple[OwnReplica, ...]
    dev_replicas: tuple[DevReplica, ...]  # instead of own ones
    threads_per_replica: int
    precision: Precision
    kv_cache_dtype: KvCacheDtype
    kafka_bootstrap: str | None
    is_once: bool
    adapters: Mapping[str, Path] = field(default_factory=dict)  # absolute folders by name
    autoscale_from: int | None = None  # of the own ones, at the beginning; None: all, always

    @property
    def first_replicas(self) -> Sequence[OwnReplica]:
        """Those that are started with the fleet; the gateway knows the places of the others."""
        return self.own_replicas[: self.autoscale_from]

    @property
    def upstreams(self) -> Sequence[OwnReplica | DevReplica]:
        return (*self.own_replicas, *self.dev_replicas)

    @property
    def summary(self) -> str:
        num_own, num_dev = len(self.first_replicas), len(self.dev_replicas)
        replicas = f"{num_own} x replica" if num_own else f"{num_dev} x dev replica"
        if self.autoscale_from is not None:
            replicas = f"{num_own} to {len(self.own_replicas)} x replica"
        admin = "" if self.admin is None else ", admin API"
        return f"2 x Valkey, {replicas} ({self.served_model}), billing, gateway{admin}"

    @property
    def quota_socket(self) -> Path:
        return self.data_dir.sockets / "quota.sock"

    @property
    def response_cache_socket(self) -> Path:
        return self.data_dir.sockets / "response-cache.sock"

    @property
    def quota_url(self) -> str:
        return f"unix://{self.quota_socket}"
