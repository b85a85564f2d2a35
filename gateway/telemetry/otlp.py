"""OTLP in JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).

Names are those of the semantic conventions for generative AI.  No prompt, answer or key is among
them, and no tenant either: it is whoever calls that knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.clock import REQUEST_PREFIX
from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import SPAN_ID
from gateway.trace import Trace

_SERVER: Final = 2  # kind of a span
_ERROR: Final = 2  # status of a span
_CUMULATIVE: Final = 2  # temporality of a histogram
_SCOPE: Final = {"name": "pandal.gateway"}

Value = str | int | float | bool
Attributes = Mapping[str, Value]
_encode = msgspec.json.Encoder().encode


# Holes for what differs from span to span; ids are digits, which nothing need escape.
_SPAN: Final = (
    b'{"traceId":"%%b","spanId":"%%b"%%b,"startTimeUnixNano":"%%d000","endTimeUnixNano":"%%d000",%b,'
    b'"attributes":[%b,{"key":"pandal.request.id","value":{"stringValue":"%b%%b"}}%b%b]}'
)
_PARENT: Final = b',"parentSpanId":"%b"'
_USAGE: Final = (
    b',{"key":"gen_ai.usage.input_tokens","value":{"intValue":"%d"}}'
    b',{"key":"gen_ai.usage.output_tokens","value":{"intValue":"%d"}}'
    b',{"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"%d"}}'
)
_TTFT: Final = b',{"key":"pandal.ttft_s","value":{"doubleValue":%.6f}}'


def span_template(
    name: str, attributes: Iterable[tuple[str, Value]], trace: Trace, *, is_failed: bool
) -> bytes:
    """What spans have in common that have as much to tell as ``trace``, with holes for the rest."""
    members: dict[str, Any] = {"name": name, "kind": _SERVER}  # JSON
    if is_failed:
        members["status"] = {"code": _ERROR}
    told = b",".join(_encode(_attribute(*pair)) for pair in attributes)
    return _SPAN % (
        _encode(members)[1:-1].replace(b"%", b"%%"),
        told.replace(b"%", b"%%"),
        REQUEST_PREFIX.encode(),
        b"" if trace.usage is None else _USAGE,
        b"" if trace.meter.first_byte_monotonic_s is None else _TTFT,
    )


def encoded_spans(
    traces: Iterable[Trace], template: bytes, wall_minus_monotonic_s: float
) -> list[bytes]:
    """``template``: ``span_template`` of one like them."""
    spans, to_wall_us = [], wall_minus_monotonic_s * 1e6
    for trace in traces:
        began_s, ended_s, usage = trace.started_monotonic_s, trace.ended_monotonic_s, trace.usage
        first_byte_s, span = trace.meter.first_byte_monotonic_s, trace.span
        assert ended_s is not None
        # As ``event_id_of``, for a call less.
        trace_id = digits = trace.request_id.removeprefix(REQUEST_PREFIX).encode()
        parent = b""
        told: tuple[float, ...] = ()
        if span is not None:
            trace_id = span.trace_id.encode()
            parent = b"" if span.parent_id is None else _PARENT % span.parent_id.encode()
        if usage is not None:
            told = usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens
        if first_byte_s is not None:
            told = (*told, first_byte_s - began_s)
        began_us, ended_us = int(began_s * 1e6 + to_wall_us), int(ended_s * 1e6 + to_wall_us)
        own = (trace_id, digits[SPAN_ID], parent, began_us, ended_us, digits, *told)
        spans.append(template % own)
    return spans


def encode_spans(resource: Attributes, spans: Sequence[bytes]) -> bytes:
    scope = {"scope": _SCOPE, "spans": ()}
    resource_spans = [{"resource": _resource(resource), "scopeSpans": [scope]}]
    before, nothing, after = _encode({"resourceSpans": resource_spans}).rpartition(b"[]")
    assert nothing
    return b"%b[%b]%b" % (before, b",".join(spans), after)


def encode_metrics(
    resource: Attributes, histograms: Sequence[Histograms], started_ns: int, now_ns: int
) -> bytes:
    scope = {"scope": _SCOPE, "metrics": [_metric(h, started_ns, now_ns) for h in histograms]}
    resource_metrics = [{"resource": _resource(resource), "scopeMetrics": [scope]}]
    return _encode({"resourceMetrics": resource_metrics})


def _metric(histograms: Histograms, started_ns: int, now_ns: int) -> dict[str, Any]:  # JSON
    points = [
        {
            "attributes": _attributes(dict(labels)),
            "startTimeUnixNano": str(started_ns),
            "timeUnixNano": str(now_ns),
            "count": str(sum(series.counts)),
            "sum": series.total,
            "bucketCounts": [str(count) for count in series.counts],
            "explicitBounds": histograms.bounds,
        }
        for labels, series in histograms.by_labels.items()
    ]
    return {
        "name": histograms.name,
        "unit": histograms.unit,
        "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points},
    }


def _resource(resource: Attributes) -> dict[str, Any]:  # JSON
    return {"attributes": _attributes(resource)}


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:  # JSON
    return [_attribute(name, value) for name, value in attributes.items()]


def _attribute(name: str, value: Value) -> dict[str, Any]:  # JSON
    return {"key": name, "value": _value(value)}


def _value(value: Value) -> dict[str, Any]:  # JSON
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}
