"""What requests leave behind for a collector: a span each, and their share of the histograms."""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

from contracts.usage import Outcome
from gateway.clock import event_id_of
from gateway.exchange import Exchange
from gateway.histogram import Histogram
from gateway.request_head import TRACEPARENT, traced_lines
from gateway.request_kinds import Alike, Kind
from gateway.telemetry.otlp import Value, encoded_spans, span_template
from gateway.telemetry.series import Histograms, Labels
from gateway.telemetry.trace_context import SAMPLED, UNSAMPLED, Sampler, new_trace_line
from gateway.trace import Trace

_MAX_SPANS: Final = 4_096  # that wait for the collector; then new ones are dropped
_MAX_KINDS: Final = 1_000
_OPERATIONS: Final = {"chat.completions": "chat", "completions": "text_completion"}
_FAILED: Final = frozenset((Outcome.UPSTREAM_FAILED, Outcome.CANCELLED))  # also behind a 200
# https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/
_DURATION_S: Final = tuple(0.01 * 2**power for power in range(14))
_TTFT_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_TOKENS: Final = tuple(4**power for power in range(14))

_Served = tuple[str, str | None, str | None]  # operation, model, reason of the refusal


class _Observed:
    """What requests of the same labels are counted into: each when there is something to count.

    No token comes of a refusal.
    """

    def __init__(self, tracer: "Tracer", labels: Labels) -> None:
        self._tracer = tracer
        self._labels = labels

    def observe(self, alike: Alike) -> None:
        self._duration_s.observe(
            [
                trace.ended_monotonic_s - trace.started_monotonic_s
                for trace in alike.traces
                if trace.ended_monotonic_s is not None
            ]
        )
        if alike.ttfts_s:
            self._ttft_s.observe(alike.ttfts_s)
        if alike.usages:
            self._input_tokens.observe([usage.prompt_tokens for usage in alike.usages])
            self._output_tokens.observe([usage.completion_tokens for usage in alike.usages])

    @cached_property
    def _duration_s(self) -> Histogram:
        return self._tracer.duration_s.of(self._labels)

    @cached_property
    def _ttft_s(self) -> Histogram:
        return self._tracer.ttft_s.of(self._labels)

    @cached_property
    def _input_tokens(self) -> Histogram:
        return self._tokens("input")

    @cached_property
    def _output_tokens(self) -> Histogram:
        return self._tokens("output")

    def _tokens(self, token_type: str) -> Histogram:
        return self._tracer.tokens.of((*self._labels, ("gen_ai.token.type", token_type)))


class _Told(NamedTuple):
    """Of requests of a kind."""

    observed: _Observed
    span: bytes  # a template


class Tracer:
    def __init__(self, sample_ratio: float) -> None:
        self._sampler = Sampler(sample_ratio)
        self._spans: deque[bytes] = deque()  # encoded
        self.num_dropped = 0
        self.duration_s = Histograms("gen_ai.server.request.duration", "s", _DURATION_S)
        self.ttft_s = Histograms("gen_ai.server.time_to_first_token", "s", _TTFT_S)
        self.tokens = Histograms("gen_ai.client.token.usage", "{token}", _TOKENS)
        self._observed: dict[_Served, _Observed] = {}
        self._told: dict[Kind, _Told] = {}

    @property
    def histograms(self) -> list[Histograms]:
        return [self.duration_s, self.ttft_s, self.tokens]

    def begin(self, exchange: Exchange, trace: Trace) -> None:
        """From here on the replica is called in our name, and not in the client's."""
        head, digits = exchange.head, event_id_of(trace.request_id)
        if head.is_traced:
            self._go_on(exchange, trace, digits)
            return
        trace.is_sampled = is_sampled = self._sampler.takes(digits)
        flags = SAMPLED if is_sampled else UNSAMPLED
        exchange.forwarded = head.forwarded + new_trace_line(digits, flags)

    def _go_on(self, exchange: Exchange, trace: Trace, digits: str) -> None:
        told = [value for name, value in exchange.head.headers if name == TRACEPARENT]
        # Two are no more than none: which of them is the caller nobody can say.
        span = self._sampler.context(told[0] if len(told) == 1 else None, digits)
        is_new = span.parent_id is None
        exchange.forwarded = traced_lines(exchange.head, span.header(), is_new=is_new)
        trace.span, trace.is_sampled = span, span.is_sampled

    def end(self, ended: Iterable[Alike], wall_minus_monotonic_s: float) -> None:
        for alike in ended:
            told = self._told.get(alike.kind) or self._tell(alike.kind, alike.traces[0])
            told.observed.observe(alike)
            sampled = [trace for trace in alike.traces if trace.is_sampled]
            room = _MAX_SPANS - len(self._spans)
            self.num_dropped += max(0, len(sampled) - room)
            self._spans += encoded_spans(sampled[:room], told.span, wall_minus_monotonic_s)

    def take_spans(self, most: int) -> list[bytes]:
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def _tell(self, kind: Kind, trace: Trace) -> _Told:
        model = None if trace.request is None else trace.request.model
        served, labels = (trace.operation, model, trace.reason), _labels(trace)
        observed = self._observed.get(served)
        if observed is None:
            if len(self._observed) >= _MAX_KINDS:
                self._observed.clear()
            observed = self._observed[served] = _Observed(self, labels)
        if len(self._told) >= _MAX_KINDS:
            self._told.clear()
        told = self._told[kind] = _Told(observed, _span(trace, labels))
        return told


def _span(trace: Trace, labels: Labels) -> bytes:
    """A template for those of its kind."""
    is_failed = trace.status >= 500 or trace.outcome in _FAILED
    return span_template(_name(labels), _shared_attributes(trace), trace, is_failed=is_failed)


def _name(labels: Labels) -> str:
    """Of spans: the operation and, where there is one, the model."""
    told = dict(labels)
    names = told["gen_ai.operation.name"], told.get("gen_ai.request.model")
    return " ".join(str(name) for name in names if name is not None)


def _labels(trace: Trace) -> Labels:
    """A model only where it is one that is served: clients may name anything."""
    labels: Labels = (
        ("gen_ai.operation.name", _OPERATIONS[trace.operation]),
        ("gen_ai.provider.name", "pandal"),
    )
    if trace.request is not None:
        labels = (*labels, ("gen_ai.request.model", trace.request.model))
    if trace.reason is not None:
        labels = (*labels, ("error.type", trace.reason))
    return labels


def _shared_attributes(trace: Trace) -> Iterator[tuple[str, Value]]:
    yield from _labels(trace)
    yield "http.response.status_code", trace.status
    if trace.request is not None:
        yield "gen_ai.response.model", trace.request.model
        yield "pandal.request.is_stream", trace.request.is_stream
    if trace.outcome is not None:
        yield "pandal.outcome", trace.outcome.value
    if trace.meter.replica is not None:
        yield "pandal.replica", trace.meter.replica
