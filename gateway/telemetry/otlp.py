"""OTLP in JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).

Names are those of the semantic conventions for generative AI.  No prompt, answer or key is among
them, and no tenant either: it is whoever calls that knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import SpanContext

_SERVER: Final = 2  # kind of a span
_ERROR: Final = 2  # status of a span
_CUMULATIVE: Final = 2  # temporality of a histogram
_SCOPE: Final = {"name": "pandal.gateway"}

Value = str | int | float | bool
Attributes = Mapping[str, Value]
_encode = msgspec.json.Encoder().encode


class FinishedSpan(msgspec.Struct, frozen=True):
    context: SpanContext
    name: str
    started_ns: int
    ended_ns: int
    attributes: Attributes
    is_failed: bool


def encode_spans(resource: Attributes, spans: Iterable[FinishedSpan]) -> bytes:
    scope = {"scope": _SCOPE, "spans": [_span(span) for span in spans]}
    resource_spans = [{"resource": _resource(resource), "scopeSpans": [scope]}]
    return _encode({"resourceSpans": resource_spans})


def encode_metrics(
    resource: Attributes, histograms: Sequence[Histograms], started_ns: int, now_ns: int
) -> bytes:
    scope = {"scope": _SCOPE, "metrics": [_metric(h, started_ns, now_ns) for h in histograms]}
    resource_metrics = [{"resource": _resource(resource), "scopeMetrics": [scope]}]
    return _encode({"resourceMetrics": resource_metrics})


def _span(span: FinishedSpan) -> dict[str, Any]:  # JSON
    context = span.context
    found: dict[str, Any] = {
        "traceId": context.trace_id,
        "spanId": context.span_id,
        "name": span.name,
        "kind": _SERVER,
        "startTimeUnixNano": str(span.started_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes(span.attributes),
    }
    if context.parent_id is not None:
        found["parentSpanId"] = context.parent_id
    if span.is_failed:
        found["status"] = {"code": _ERROR}
    return found


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
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:  # JSON
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}
