"""OTLP in JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).

Names are those of the semantic conventions for generative AI.  No prompt, answer or key is among
them, and no tenant either: it is whoever calls that knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.metering import Usage
from gateway.telemetry.series import Histograms

SERVER: Final = 2  # kind of a span
_ERROR: Final = 2  # status of a span
_CUMULATIVE: Final = 2  # temporality of a histogram
_SCOPE: Final = {"name": "pandal.gateway"}

Value = str | int | float | bool
Attributes = Mapping[str, Value]
_encode = msgspec.json.Encoder().encode


class _Status(msgspec.Struct, frozen=True, gc=False):
    code: int


FAILED: Final = _Status(_ERROR)


class Span(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    traceId: str  # noqa: N815  # the protocol's name, as all of these
    spanId: str  # noqa: N815
    name: str
    startTimeUnixNano: str  # noqa: N815
    endTimeUnixNano: str  # noqa: N815
    attributes: msgspec.Raw
    kind: int
    parentSpanId: str | None = None  # noqa: N815  # None: the trace begins here
    status: _Status | None = None


def encoded(attributes: Iterable[tuple[str, Value]]) -> bytes:
    """For the many spans that have them."""
    return b",".join(_encode(_attribute(*pair)) for pair in attributes)


_REQUEST_ID: Final = b',{"key":"pandal.request.id","value":{"stringValue":"%b"}}'
_USAGE: Final = (
    b',{"key":"gen_ai.usage.input_tokens","value":{"intValue":"%d"}}'
    b',{"key":"gen_ai.usage.output_tokens","value":{"intValue":"%d"}}'
    b',{"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"%d"}}'
)
_TTFT: Final = b',{"key":"pandal.ttft_s","value":{"doubleValue":%.6f}}'


def span_attributes(
    shared: bytes, request_id: str, usage: Usage | None, ttft_s: float | None
) -> msgspec.Raw:
    """Those that are ``encoded``, and a request's own: digits, which nothing need escape."""
    used = b""
    if usage is not None:
        tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens
        used = _USAGE % tokens
    return msgspec.Raw(
        b"[%b%b%b%b]"
        % (
            shared,
            _REQUEST_ID % request_id.encode(),
            used,
            b"" if ttft_s is None else _TTFT % ttft_s,
        )
    )


def encode_spans(resource: Attributes, spans: Sequence[Span]) -> bytes:
    scope = {"scope": _SCOPE, "spans": spans}
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
