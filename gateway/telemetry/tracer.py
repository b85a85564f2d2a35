"""What requests leave behind for a collector: a span each, and their share of the histograms."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from contracts.usage import Outcome
from gateway.clock import event_id_of
from gateway.exchange import Exchange
from gateway.request_head import TRACEPARENT, traced_lines
from gateway.telemetry.otlp import Value, encode_span, span_template
from gateway.telemetry.series import Histograms, Labels, Series
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

_Known = tuple[str, str | None, str | None]  # operation, model, reason of the refusal


class _Kind:
    """What requests of the same labels are counted into: found once, and not once a request.

    Each when there is something to count: no token comes of a refusal.
    """

    def __init__(self, tracer: "Tracer", labels: Labels) -> None:
        self._tracer = tracer
        self._labels = labels
        told = dict(labels)
        names = told["gen_ai.operation.name"], told.get("gen_ai.request.model")
        self.name = " ".join(str(name) for name in names if name is not None)

    def observe(self, traces: Sequence[Trace]) -> None:
        self._duration_s.observe(
            [
                trace.ended_monotonic_s - trace.started_monotonic_s
                for trace in traces
                if trace.ended_monotonic_s is not None
            ]
        )
        ttfts_s = [
            trace.meter.first_byte_monotonic_s - trace.started_monotonic_s
            for trace in traces
            if trace.meter.first_byte_monotonic_s is not None
        ]
        if ttfts_s:
            self._ttft_s.observe(ttfts_s)
        usages = [trace.usage for trace in traces if trace.usage is not None]
        if usages:
            self._input_tokens.observe([usage.prompt_tokens for usage in usages])
            self._output_tokens.observe([usage.completion_tokens for usage in usages])

    @cached_property
    def _duration_s(self) -> Series:
        return self._tracer.duration_s.of(self._labels)

    @cached_property
    def _ttft_s(self) -> Series:
        return self._tracer.ttft_s.of(self._labels)

    @cached_property
    def _input_tokens(self) -> Series:
        return self._tokens("input")

    @cached_property
    def _output_tokens(self) -> Series:
        return self._tokens("output")

    def _tokens(self, token_type: str) -> Series:
        return self._tracer.tokens.of((*self._labels, ("gen_ai.token.type", token_type)))


class Tracer:
    def __init__(self, sample_ratio: float) -> None:
        self._sampler = Sampler(sample_ratio)
        self._spans: deque[bytes] = deque()  # encoded
        self.num_dropped = 0
        self.duration_s = Histograms("gen_ai.server.request.duration", "s", _DURATION_S)
        self.ttft_s = Histograms("gen_ai.server.time_to_first_token", "s", _TTFT_S)
        self.tokens = Histograms("gen_ai.client.token.usage", "{token}", _TOKENS)
        self._kinds: dict[_Known, _Kind] = {}
        self._templates: dict[tuple[object, ...], bytes] = {}

    @property
    def histograms(self) -> list[Histograms]:
        return [self.duration_s, self.ttft_s, self.tokens]

    def begin(self, exchange: Exchange, trace: Trace) -> None:
        """From here on the replica is called in our name, and not in the client's."""
        head, digits = exchange.head, event_id_of(trace.request_id)
        if head.is_traced:
            self._go_on(exchange, trace, digits)
        elif self._sampler.takes(digits):
            trace.is_sampled = True
            exchange.forwarded = head.forwarded + new_trace_line(digits, SAMPLED)
        else:
            exchange.forwarded = head.forwarded + new_trace_line(digits, UNSAMPLED)

    def _go_on(self, exchange: Exchange, trace: Trace, digits: str) -> None:
        span = self._sampler.context(exchange.header(TRACEPARENT), digits)
        is_new = span.parent_id is None
        exchange.forwarded = traced_lines(exchange.head, span.header(), is_new=is_new)
        trace.span, trace.is_sampled = span, span.is_sampled

    def end(self, ended: Iterable[Trace], wall_minus_monotonic_s: float) -> None:
        by_kind: dict[_Known, list[Trace]] = {}
        for trace in ended:
            request = trace.request
            model = None if request is None else request.model
            known: _Known = trace.operation, model, trace.reason
            alike = by_kind.get(known)
            if alike is None:
                by_kind[known] = [trace]
            else:
                alike.append(trace)
        for known, traces in by_kind.items():
            kind = self._kind(known, traces[0])
            kind.observe(traces)
            self._keep([t for t in traces if t.is_sampled], kind, wall_minus_monotonic_s)

    def take_spans(self, most: int) -> list[bytes]:
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def _kind(self, known: _Known, trace: Trace) -> _Kind:
        kind = self._kinds.get(known)
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            kind = self._kinds[known] = _Kind(self, _labels(trace))
        return kind

    def _keep(self, traces: Sequence[Trace], kind: _Kind, wall_minus_monotonic_s: float) -> None:
        room = _MAX_SPANS - len(self._spans)
        self.num_dropped += max(0, len(traces) - room)
        self._spans += [
            encode_span(trace, self._template(trace, kind), wall_minus_monotonic_s)
            for trace in traces[:room]
        ]

    def _template(self, trace: Trace, kind: _Kind) -> bytes:
        request, meter = trace.request, trace.meter
        known = (
            kind, trace.status, trace.outcome, meter.replica,
            request is None or request.is_stream,
            trace.usage is None, meter.first_byte_monotonic_s is None,
        )  # fmt: skip
        template = self._templates.get(known)
        if template is None:
            if len(self._templates) >= _MAX_KINDS:
                self._templates.clear()
            is_failed = trace.status >= 500 or trace.outcome in _FAILED
            attributes = _shared_attributes(trace)
            template = span_template(kind.name, attributes, trace, is_failed=is_failed)
            self._templates[known] = template
        return template


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
