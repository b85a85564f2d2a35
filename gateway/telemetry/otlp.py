"""OTLP in JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).

Names are those of the semantic conventions for generative AI.  No prompt, answer or key is among
them, and no tenant either: it is whoever calls that knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import SpanContext
from gateway.trace import Trace

_SERVER: Final = 2  # kind of a span
_ERROR: Final = 2  # status of a span
_CUMULATIVE: Final = 2  # temporality of a histogram
_SCOPE: Final = {"name": "pandal.gateway"}

Value = str | int | float | bool
Attributes = Mapping[str, Value]
_encode = msgspec.json.Encoder().encode


def shared_members(name: str, attributes: Iterable[tuple[str, Value]], *, is_failed: bool) -> str:
    """What many spans have in common, encoded for all of them: the list of attributes is open."""
    members: dict[str, Any] = {"name": name, "kind": _SERVER}  # JSON
    if is_failed:
        members["status"] = {"code": _ERROR}
    told = b",".join(_encode(_attribute(*pair)) for pair in attributes)
    return (b'%b,"attributes":[%b' % (_encode(members)[1:-1], told)).decode()


_SPAN: Final = (
    '{"traceId":"%s","spanId":"%s"%s,"startTimeUnixNano":"%d","endTimeUnixNano":"%d",%s,'
    '{"key":"pandal.request.id","value":{"stringValue":"%s"}}%s%s]}'
)
_PARENT: Final = ',"parentSpanId":"%s"'
_USAGE: Final = (
    ',{"key":"gen_ai.usage.input_tokens","value":{"intValue":"%d"}}'
    ',{"key":"gen_ai.usage.output_tokens","value":{"intValue":"%d"}}'
    ',{"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"%d"}}'
)
_TTFT: Final = ',{"key":"pandal.ttft_s","value":{"doubleValue":%.6f}}'


def encode_span(
    context: SpanContext, trace: Trace, shared: str, wall_minus_monotonic_s: float
) -> str:
    """``shared``: ``shared_members``.  Ids are digits, which nothing need escape."""
    began_s, ended_s, usage = trace.started_monotonic_s, trace.ended_monotonic_s, trace.usage
    first_byte_s, used, waited, parent = trace.meter.first_byte_monotonic_s, "", "", ""
    assert ended_s is not None
    if context.parent_id is not None:
        parent = _PARENT % context.parent_id
    if usage is not None:
        used = _USAGE % (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens)
    if first_byte_s is not None:
        waited = _TTFT % (first_byte_s - began_s)
    return _SPAN % (
        context.trace_id,
        context.span_id,
        parent,
        int((began_s + wall_minus_monotonic_s) * 1e9),
        int((ended_s + wall_minus_monotonic_s) * 1e9),
        shared,
        trace.request_id,
        used,
        waited,
    )


def encode_spans(resource: Attributes, spans: Sequence[str]) -> bytes:
    scope = {"scope": _SCOPE, "spans": msgspec.Raw(f"[{','.join(spans)}]".encode())}
    resource_spans = [{"resource": _resource(resource), "scopeSpans": [scope]}]
    return _encode({"resourceSpans": resource_spans})


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
