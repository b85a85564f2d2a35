"""Every knob of a replica."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from contracts import environment
from replica.engine.messages import (
    CpuBackend,
    Device,
    EngineConfig,
    KvCacheDtype,
    Precision,
    Preemption,
)
from replica.model import store

PREFIX: Final = "REPLICA_"

# Of a step.  CPU: while a prompt is pasted, 330 ms between a stream's tokens; with 512 it would be
# 1,270, for a paste 6 % shorter (benchmarks/paste.py, two cores).  CUDA: as vLLM; a step is bound
# by weights until then.
_MAX_NUM_BATCHED_TOKENS: Final = {Device.CPU: 128, Device.CUDA: 2048}


# As in a model's name, but for the colon, which parts it from the base model's.
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


def _adapters(value: object) -> object:
    """JSON in which no name stands twice: else the last one would be served in silence."""
    try:
        return json.loads(value, object_pairs_hook=_each_once) if isinstance(value, str) else value
    except (json.JSONDecodeError, RecursionError):
        raise ValueError('expected JSON, such as {"law": "/adapters/law"}') from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the name {name!r} stands twice")
    return dict(pairs)


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/pandal/models``; a relative value is ignored, as its specification asks.

    https://specifications.freedesktop.org/basedir-spec/
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "pandal" / "models"


class Settings(BaseSettings):
    """Read once, in ``__main__``, from REPLICA_* environment variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, protected_namespaces=()
    )

    host: str = "127.0.0.1"  # a local fleet is nobody else's business
    port: int = Field(8000, ge=1, le=65535)  # vLLM's default: tools know it
    model: str = "SmolLM2-135M-Instruct"  # small enough for any laptop, Apache-2.0
    model_cache_dir: Path = Field(default_factory=default_cache_dir)  # shared by all replicas
    served_model_name: str | None = None  # None: the model's own name
    # Low-rank ones as PEFT keeps them: folders by the names that requests give as their model.
    adapters: Annotated[dict[AdapterName, str], NoDecode, BeforeValidator(_adapters)] = {}
    device: Device = Device.CPU
    num_threads: int | None = Field(None, ge=1, le=1024)  # None: the cores there are, less quotas
    # The fastest that can run the model: the compiled step where it can, else torch.
    cpu_backend: CpuBackend = CpuBackend.AUTO
    # The compiled step only.  The defaults round nothing that was shipped; benchmarks/quality.py
    # says what the others cost.
    precision: Precision = Precision.EXACT
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.FLOAT32
    compile_cache_dir: Path = Field(
        default_factory=lambda: default_cache_dir().parent / "kernels"
    )  # code compiled once for this machine, shared by all replicas
    # Threads that spin between parallel regions starve whoever shares the cores: 35 times the tail.
    omp_wait_policy: Literal["PASSIVE", "ACTIVE"] = "PASSIVE"
    max_model_len: int | None = Field(
        None, ge=2
    )  # tokens; None: the model's, if the cache holds it
    memory_bytes: int | None = Field(
        None, ge=1
    )  # for weights, work and cache; None: what the machine or the container has left
    kv_cache_bytes: int = Field(
        1 << 30, ge=1
    )  # 22,000 tokens of SmolLM2; untouched pages cost nothing
    # Swapping is cheaper (decision 0005), but here host memory is better spent on the cache itself.
    preemption: Preemption = Preemption.RECOMPUTE
    swap_bytes: int = Field(
        256 << 20, ge=0
    )  # for what swapped sequences had computed: 5,800 tokens of SmolLM2; unused when recomputing
    block_size: int = Field(16, ge=1, le=1024)  # tokens; vLLM's: little waste, fine-grained sharing
    max_num_seqs: int = Field(32, ge=1, le=1024)  # throughput on 2 cores is flat beyond
    max_num_batched_tokens: int | None = Field(
        None, ge=1
    )  # None: as many as the device takes well, and one for each running sequence
    is_prefix_caching: bool = True  # costs under 1 % when nothing is ever shared
    is_kv_poisoned: bool = (
        False  # for debugging: NaN where nobody may read, at the price of writing it
    )
    # Schedule and account while a step computes.  For a device beside the CPU: on the CPU itself
    # that takes cores from the step.  On two of them, 58 tokens/s against 75 with one stream, 160
    # against 173 with sixteen (benchmarks/async_scheduling.py).
    is_async_scheduling: bool = False
    priority_aging_s: float = Field(
        30.0, gt=0
    )  # batch work waits so much longer than interactive, and no more
    fair_share_slack_tokens: int = Field(
        64, ge=0
    )  # a tenth of 10 s at 70 tokens a second; shorter turns recompute more often
    prefix_window_s: float = Field(
        5.0, ge=0
    )  # so much later, and no later, whose prompt is cached may come and go first
    max_num_waiting: int = Field(
        256, ge=0
    )  # requests; beyond, waiting takes minutes: refuse at once
    max_body_bytes: int = Field(4 << 20, ge=1)  # a full context is about 40 KiB; vocabularies vary
    read_timeout_s: float = Field(30.0, gt=0)  # for a whole body; 4 MiB at 1.2 Mbit/s fit
    write_timeout_s: float = Field(60.0, gt=0)  # without a byte taken the client is gone
    drain_timeout_s: float = Field(20.0, ge=0)  # inside Kubernetes' usual 30 s of grace
    step_timeout_s: float = Field(
        30.0, gt=0
    )  # a step takes a second or two; by then a router should look elsewhere
    hang_exit_timeout_s: float = Field(
        60.0, gt=0
    )  # no step for so long: nothing will come; a supervisor starts anew
    usage_journal_dir: Path | None = None  # None: nobody reconciles, so nothing is kept
    usage_journal_bytes: int = Field(64 << 20, ge=1 << 16)  # the latest 130,000 requests
    failure_linger_s: float = Field(1.0, ge=0)  # after the engine died: for errors to reach clients
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _every_running_sequence_can_step(self) -> Self:
        if self.step_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.step_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each decodes one token a step"
            )
        return self

    @model_validator(mode="after")
    def _each_name_means_one_thing(self) -> Self:
        if self.name in self.adapters:
            raise ValueError(f"an adapter has the model's own name, {self.name!r}")
        return self

    @model_validator(mode="after")
    def _unready_before_gone(self) -> Self:
        if self.hang_exit_timeout_s < self.step_timeout_s:
            raise ValueError(
                f"hang_exit_timeout_s ({self.hang_exit_timeout_s}) must be at least "
                f"step_timeout_s ({self.step_timeout_s})"
            )
        return self

    @property
    def name(self) -> str:
        if self.served_model_name is not None:
            return self.served_model_name
        return store.model_name(self.model)

    @property
    def step_tokens(self) -> int:
        """The most tokens of one step."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(_MAX_NUM_BATCHED_TOKENS[self.device], self.max_num_seqs)

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            model=self.model,
            model_cache_dir=os.fspath(self.model_cache_dir),
            device=self.device,
            num_threads=self.num_threads,
            cpu_backend=self.cpu_backend,
            precision=self.precision,
            kv_cache_dtype=self.kv_cache_dtype,
            compile_cache_dir=os.fspath(self.compile_cache_dir),
            max_model_len=self.max_model_len,
            memory_bytes=self.memory_bytes,
            kv_cache_bytes=self.kv_cache_bytes,
            preemption=self.preemption,
            swap_bytes=self.swap_bytes,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            is_prefix_caching=self.is_prefix_caching,
            is_kv_poisoned=self.is_kv_poisoned,
            is_async_scheduling=self.is_async_scheduling,
            priority_aging_s=self.priority_aging_s,
            fair_share_slack_tokens=self.fair_share_slack_tokens,
            prefix_window_s=self.prefix_window_s,
            log_level=self.log_level,
            adapters=tuple(self.adapters.items()),
        )


def unread_variables() -> Mapping[str, str]:
    """Variables of ours that are no setting, each with what to do about it."""
    return environment.unread_variables(os.environ, PREFIX, Settings.model_fields)
