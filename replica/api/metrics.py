"""``GET /metrics``: Prometheus text format 0.0.4, under vLLM's names."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from contracts import metrics as names
from replica.api.context import ReplicaContext, context_of
from replica.engine.engine import Engine
from replica.engine.messages import Preemption
from replica.telemetry import Histogram


async def metrics(request: Request) -> Response:
    context = context_of(request)
    lines = [*_lines(context.engine), *_journal_lines(context)]
    text = "\n".join(lines) + "\n"
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _lines(engine: Engine) -> Iterator[str]:
    label = _model_label(engine)
    yield from _gauges(engine, label)
    yield from _counters(engine, label)
    telemetry = engine.telemetry
    yield from _histogram(names.TIME_TO_FIRST_TOKEN, telemetry.time_to_first_token_s, label)
    yield from _histogram(names.INTER_TOKEN_LATENCY, telemetry.inter_token_latency_s, label)
    yield from _histogram(names.E2E_REQUEST_LATENCY, telemetry.end_to_end_latency_s, label)
    yield from _histogram(names.REQUEST_QUEUE_TIME, telemetry.queue_time_s, label)
    yield from _histogram(names.ITERATION_TOKENS, telemetry.iteration_tokens, label)


def _gauges(engine: Engine, label: str) -> Iterator[str]:
    stats = engine.stats
    usage_ratio = (
        stats.num_used_blocks / stats.num_usable_blocks if stats.num_usable_blocks else 0.0
    )
    yield from _single(names.NUM_REQUESTS_RUNNING, "gauge", label, stats.num_running)
    yield from _single(names.NUM_REQUESTS_WAITING, "gauge", label, stats.num_waiting)
    yield from _single(names.KV_CACHE_USAGE, "gauge", label, usage_ratio)
    if engine.ready is not None:
        sizes = f'block_size="{engine.ready.block_size}",num_gpu_blocks="{engine.ready.num_blocks}"'
        yield from _single(names.CACHE_CONFIG_INFO, "gauge", f"{label},{sizes}", 1)


def _counters(engine: Engine, label: str) -> Iterator[str]:
    stats = engine.stats
    for name, value in (
        (names.PREFIX_CACHE_QUERIES, stats.prefix_cache_queries),
        (names.PREFIX_CACHE_HITS, stats.prefix_cache_hits),
        (names.NUM_PREEMPTIONS, stats.num_preemptions),
        (names.PROMPT_TOKENS, stats.prompt_tokens),
        (names.GENERATION_TOKENS, stats.generation_tokens),
        (names.BLOCK_AUDITS, stats.num_audits),
        (names.BLOCK_AUDIT_FAULTS, stats.num_audit_faults),
    ):
        yield from _single(name, "counter", label, value)
    num_recomputed = stats.num_preemptions - stats.num_swaps
    yield f"# TYPE {names.PREEMPTIONS} counter"
    yield f'{names.PREEMPTIONS}{{{label},kind="{Preemption.RECOMPUTE}"}} {num_recomputed}'
    yield f'{names.PREEMPTIONS}{{{label},kind="{Preemption.SWAP}"}} {stats.num_swaps}'
    yield f"# TYPE {names.REQUEST_SUCCESS} counter"
    for reason, count in engine.telemetry.num_finished.items():
        yield f'{names.REQUEST_SUCCESS}{{{label},finished_reason="{reason}"}} {count}'


def _journal_lines(context: ReplicaContext) -> Iterator[str]:
    journal = context.witness.journal
    if journal is not None:
        label = _model_label(context.engine)
        yield from _single(names.JOURNAL_WRITTEN, "counter", label, journal.num_written)
        yield from _single(names.JOURNAL_LOST, "counter", label, journal.num_lost)


def _model_label(engine: Engine) -> str:
    return f'model_name="{_escape(engine.names.model)}"'


def _single(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {value}"


def _histogram(name: str, histogram: Histogram, label: str) -> Iterator[str]:
    *counts, total = histogram.cumulative_counts
    yield f"# TYPE {name} histogram"
    for bound, count in zip(histogram.bounds, counts, strict=True):
        yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
    yield f'{name}_bucket{{{label},le="+Inf"}} {total}'
    yield f"{name}_sum{{{label}}} {histogram.sum}"
    yield f"{name}_count{{{label}}} {total}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
