"""Every knob of the gateway, read once from the environment (prefix ``GATEWAY_``)."""

import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import environment
from gateway.provider_url import provider_url
from gateway.secret_settings import KeyPepper, OwnKeyFile, StoreUrl

PREFIX = "GATEWAY_"

_NO_HEADER = re.compile(r"[\x00-\x1f\x7f]")  # would end the header that it is sent in


class ReplicaAddress(BaseModel):
    """One configured replica."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    # Plain HTTP inside the fleet.
    url: str = Field(pattern=r"^http://[^/:]+:\d+/?$", examples=["http://127.0.0.1:8000"])


class EventPublisher(BaseModel):
    """Where an engine of another make publishes its block events over ZeroMQ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(min_length=1)
    port: int = Field(default=5557, ge=1, le=65_535)  # vLLM's own default
    replay_port: int | None = Field(default=None, ge=1, le=65_535)  # None: it replays nothing


class ProviderAddress(BaseModel):
    """A server of another owner: for policies' fallback chains, and as a member of pools."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Before the model in events and prices.
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", examples=["openai"])
    # As for SDKs, with or without /v1; kept with its port.
    url: Annotated[str, AfterValidator(provider_url)] = Field(
        examples=["https://api.openai.com/v1"]
    )
    api: Literal["openai", "anthropic"] = "openai"
    api_key: SecretStr | None = None
    # Read at the start, without what surrounds the key.
    api_key_file: Path | None = Field(default=None, examples=["/run/secrets/provider-key"])
    models: dict[str, str] = {}  # beside replicas of these it serves what it calls so
    # Of a replica's; 0.1: where ten times as much waits.
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.api_key is None) == (self.api_key_file is None):
            raise ValueError("a provider needs either an api_key or an api_key_file, not both")
        if self.api_key is not None and _NO_HEADER.search(self.api_key.get_secret_value()):
            raise ValueError("expected an api_key without line ends and other control characters")
        if self.models and self.api != "openai":
            raise ValueError("only a provider with OpenAI's API can stand beside replicas")
        return self


_Addresses = tuple[ReplicaAddress, ...] | tuple[ProviderAddress, ...]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # two of the inputs are secrets
    )

    host: str = "127.0.0.1"  # reachable from this machine only, unless someone says otherwise
    port: int = Field(default=8080, ge=0, le=65_535)  # 0: any free port, told in the log
    workers: int = Field(default=1, ge=1, le=64)  # processes, of which each can use one core
    replicas: tuple[ReplicaAddress, ...] = ()  # none: every request is refused with 503
    replica_file: Path | None = None  # more of them, spelled alike; read again when it changes
    replica_dns: str | None = Field(default=None, pattern=r"^[^/:]+:\d+$")  # host:port, all of its
    replica_services: tuple[str, ...] = ()  # Kubernetes services, by their EndpointSlices
    replica_port_name: str = "http"  # of those that have several ports
    kubernetes_namespace: str = "default"  # of the services
    kubernetes_url: str = Field(default="https://kubernetes.default.svc", pattern=r"^https://")
    kubernetes_credentials: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # a pod's
    providers: tuple[ProviderAddress, ...] = ()  # only whom a policy names gets its requests
    model_aliases: dict[str, str | dict[str, float]] = {}  # name -> model, or several by weight
    routing: Literal["prefix", "exact"] = "prefix"  # exact: by the replicas' own block events
    routing_index_blocks: int = Field(default=1_000_000, ge=1)  # of exact routing; 170 bytes each
    routing_engine_events: dict[str, EventPublisher] = {}  # of vLLM and SGLang, by replica's name
    routing_load_factor: float = Field(default=1.3, ge=1)  # of the mean load; more moves prefixes
    routing_least_prefix_tokens: int = Field(default=64, ge=0)  # shorter prompts are soon computed
    routing_explained: bool = False  # to clients that ask: it names replicas and their load
    routing_slow_start_s: float = Field(default=30.0, gt=0)  # a cache is warm after some requests
    policy_url: StoreUrl | None = None  # as quota_url; None: the policy is in policy_file
    # Nobody may call a gateway without a policy.  With a policy_url it is a copy to start from.
    policy_file: Path | None = Field(default=None, validate_default=True)
    policy_poll_interval_s: float = Field(default=0.25, gt=0)  # a revoked key dies within 1 s
    key_pepper: KeyPepper  # 16 to 64 bytes; keys the hashes of API keys and the tenants' salts
    quota_url: StoreUrl  # unix:///path/quota.sock or redis://[user:password@]host:port[/db]
    redis_ca_file: Path | None = None  # PEM, of rediss:// stores; None: whom this machine trusts
    redis_certificate_file: Path | None = None  # PEM, with its chain; None: stores ask for none
    redis_certificate_key_file: OwnKeyFile | None = None
    quota_call_deadline_s: float = Field(default=0.05, gt=0)  # 20x a healthy call's time
    quota_share_lease_s: float = Field(default=60.0, ge=0)  # an outage's length without refusals
    quota_lease_s: float = Field(default=120.0, gt=0, le=600)  # then a dead gateway's holds end
    records_admissions: bool = True  # sizes and times of an hour, in the quota store: for dry runs
    prompt_estimate_quantile: float = Field(default=0.95, gt=0.5, lt=1)  # one in 20 is too low
    max_waiting: int = Field(default=1_024, ge=1)  # for their turn, of one model; seconds of work
    batch_ageing_s: float = Field(default=30.0, ge=0)  # then batch takes turns like everybody
    spool_dir: Path  # must outlive the process: events wait here for billing
    spool_segment_bytes: int = Field(default=64 * 1024 * 1024, ge=1)  # minutes of full load
    spool_hold_s: float = Field(default=5.0, gt=0)  # longer than a slow disk, shorter than a client
    # How much may wait there for Kafka, of all workers together, and what happens then: new work is
    # refused with 503, or the oldest events are given up.  Less than the volume; a billing that
    # reads the spool itself bounds it by BILLING_SPOOL_KEEP_S, and the disk does.
    spool_max_waiting_bytes: int = Field(default=8 * 1024**3, ge=1)
    spool_full: Literal["refuse", "shed"] = "refuse"
    durability: Literal["commit", "relaxed"] = "commit"  # relaxed: an answer ends without waiting
    gateway_id: str = Field(default="gateway-0", min_length=1)  # stable over restarts
    kafka_bootstrap: str | None = None  # None: billing reads the spool itself
    # How brokers are spoken to, by Kafka's own names.
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    kafka_ca_file: Path | None = None  # PEM; None: whom this machine trusts
    kafka_certificate_file: Path | None = None  # PEM, with its chain; None: brokers ask for none
    kafka_certificate_key_file: OwnKeyFile | None = None
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_username: SecretStr | None = None
    kafka_password: SecretStr | None = None
    # With metrics of their own.  None: who is a customer is not everybody's to read, and each is
    # some series more.
    metrics_tenants: tuple[str, ...] = Field(default=(), max_length=100)
    # A collector of OpenTelemetry, by OTLP over HTTP in JSON; None: no telemetry.
    otlp_url: str | None = Field(default=None, pattern=r"^http://[^/:]+:\d+/?$")
    otlp_sample_ratio: float = Field(default=1.0, ge=0, le=1)  # where the caller does not decide
    drain_timeout_s: float = Field(default=20.0, ge=0)  # inside Kubernetes' usual 30 s of grace
    keep_alive_timeout_s: int = Field(default=75, ge=1)  # longer than load balancers' usual 60 s
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1)  # a million-token prompt fits
    max_answer_bytes: int = Field(default=64 * 1024 * 1024, ge=1)  # of one non-streamed answer
    max_event_bytes: int = Field(default=8 * 1024 * 1024, ge=1)  # of one server-sent event
    read_timeout_s: float = Field(default=60.0, gt=0)  # for a whole request; 8 MB at 1 Mbit/s fit
    write_timeout_s: float = Field(default=60.0, gt=0)  # without a byte taken the client is gone
    answer_timeout_s: float = Field(default=3_600.0, gt=0)  # a slow reader's end; far above any use
    connect_timeout_s: float = Field(default=2.0, gt=0)  # a LAN answers in milliseconds
    head_timeout_s: float = Field(default=300.0, gt=0)  # a long prompt on a CPU takes minutes
    idle_timeout_s: float = Field(default=60.0, gt=0)  # the longest gap between two chunks
    upstream_keep_alive_s: float = Field(default=60.0, gt=0)  # a replica closes after 75 s
    abort_timeout_s: float = Field(default=4.0, gt=0)  # the count comes after a step of the engine
    cache_url: StoreUrl | None = None  # as quota_url, of a store of its own; None: none is kept
    cache_call_deadline_s: float = Field(default=0.02, gt=0)  # later is as good as a miss
    idempotency_kept_s: float = Field(default=600.0, ge=0)  # clients try again within minutes
    idempotency_call_deadline_s: float = Field(default=0.25, gt=0)  # of cache_url's store
    idempotency_max_bytes: int = Field(default=64 * 1024 * 1024, ge=0)  # of answers kept for them
    max_retries: int = Field(default=2, ge=0, le=10)  # of a request, before its first byte
    retry_budget_ratio: float = Field(default=0.2, ge=0, le=1)  # retries a request, over all
    retry_wait_s: float = Field(default=2.0, ge=0)  # a longer Retry-After is the client's to wait
    resume_patience_s: float = Field(default=10.0, ge=0)  # a replica's restart, on warm disks
    poll_interval_s: float = Field(default=1.0, gt=0)  # a dead replica is noticed within two
    poll_timeout_s: float = Field(default=2.0, gt=0)  # a busy replica may answer late

    @field_validator("policy_file")
    @classmethod
    def _policy_is_somewhere(cls, value: Path | None, others: ValidationInfo) -> Path | None:
        if value is None and others.data.get("policy_url") is None:
            raise ValueError("expected a policy_file or a policy_url")
        return value

    @model_validator(mode="after")
    def _kafka_is_told_who_we_are(self) -> Self:
        if self.kafka_security.startswith("sasl") and None in (
            self.kafka_username,
            self.kafka_password,
        ):
            raise ValueError("kafka_security with SASL needs kafka_username and kafka_password")
        return self

    @field_validator("model_aliases")
    @classmethod
    def _aliases_lead_somewhere(
        cls, value: dict[str, str | dict[str, float]]
    ) -> dict[str, str | dict[str, float]]:
        for name, target in value.items():
            if target == name:
                raise ValueError(f"{name}: expected another name than the alias's own")
            if not isinstance(target, str) and not _are_weights(target.values()):
                raise ValueError(
                    f"{name}: an alias's weights must be finite, and not negative, nor all zero"
                )
        return value

    @field_validator("replicas", "providers")
    @classmethod
    def _names_are_unique(cls, value: _Addresses, others: ValidationInfo) -> _Addresses:
        taken = [address.name for address in (*value, *others.data.get("replicas", ()))]
        if len(set(taken)) != len(taken):
            raise ValueError("each needs a name of its own")
        return value


def _are_weights(weights: Collection[float]) -> bool:
    total = sum(weights)
    return math.isfinite(total) and total > 0.0 and min(weights) >= 0.0


def unread_variables() -> Mapping[str, str]:
    """Variables of ours that are no setting, each with what to do about it."""
    return environment.unread_variables(os.environ, PREFIX, Settings.model_fields)
