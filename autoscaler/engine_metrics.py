"""What engines tell of themselves, whatever they call it: vLLM and Pandal, or SGLang."""

from dataclasses import dataclass, fields
from typing import Final

from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, finite_count, normal_name
from autoscaler.latency import Buckets, buckets_of
from autoscaler.pages import Reading
from contracts import metrics as names


@dataclass(frozen=True, slots=True)
class Dialect:
    num_running: str
    num_waiting: str
    kv_cache_usage: str
    prompt_tokens: str
    generation_tokens: str
    num_finished: str
    ttft: str

    @property
    def families(self) -> tuple[str, ...]:
        """As a server of metrics names them."""
        *plain, histogram = (getattr(self, field.name) for field in fields(self))
        return (*plain, f"{histogram}_bucket")


_VLLM: Final = Dialect(
    num_running=names.NUM_REQUESTS_RUNNING,
    num_waiting=names.NUM_REQUESTS_WAITING,
    kv_cache_usage=names.KV_CACHE_USAGE,
    prompt_tokens=names.PROMPT_TOKENS,
    generation_tokens=names.GENERATION_TOKENS,
    num_finished=names.REQUEST_SUCCESS,
    ttft=names.TIME_TO_FIRST_TOKEN,
)
# https://docs.sglang.ai/references/production_metrics.html
_SGLANG: Final = Dialect(
    num_running="sglang:num_running_reqs",
    num_waiting="sglang:num_queue_reqs",
    kv_cache_usage="sglang:token_usage",
    prompt_tokens="sglang:prompt_tokens_total",
    generation_tokens="sglang:generation_tokens_total",
    num_finished="sglang:num_requests_total",
    ttft="sglang:time_to_first_token_seconds",
)
_DIALECTS: Final = (_VLLM, _SGLANG)


@dataclass(frozen=True, slots=True)
class EngineSample:
    """At one instant; counters since the engine's start."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prompt_tokens: float
    generation_tokens: float
    num_finished: float
    ttft: Buckets
    taken_at_s: float | None = None  # by the clock of who took it; None: it was asked now


def engine_sample(families: Families, taken_at_s: float | None = None) -> EngineSample:
    """Raises SourceFailed: a gauge that is missing is unknown, and unknown is not zero."""
    for dialect in _DIALECTS:
        if normal_name(dialect.num_running) in families:
            return _sample(families, dialect, taken_at_s)
    raise SourceFailed("no engine's metrics: neither vLLM's names nor SGLang's")


ENGINE_READING: Final = Reading(
    tuple(name for d in _DIALECTS for name in d.families), engine_sample
)


def _sample(families: Families, dialect: Dialect, taken_at_s: float | None) -> EngineSample:
    return EngineSample(
        num_running=int(_gauge(families, dialect.num_running)),
        num_waiting=int(_gauge(families, dialect.num_waiting)),
        kv_cache_usage=_gauge(families, dialect.kv_cache_usage),
        prompt_tokens=_counter(families, dialect.prompt_tokens),
        generation_tokens=_counter(families, dialect.generation_tokens),
        num_finished=_counter(families, dialect.num_finished),
        ttft=buckets_of(families, dialect.ttft),
        taken_at_s=taken_at_s,
    )


def _gauge(families: Families, name: str) -> float:
    samples = families.get(normal_name(name))
    if not samples:
        raise SourceFailed(f"{name} is missing")
    return finite_count(name, sum(sample.value for sample in samples))


def _counter(families: Families, name: str) -> float:
    """Labelled counters have no series before their first event: with the gauges there, 0."""
    return finite_count(name, sum(s.value for s in families.get(normal_name(name), ())))
