"""Trace contexts as the specification wants them, and histograms within bounds."""

import asyncio
import json
from typing import Any

import pytest

from contracts.usage import UsageSource
from gateway.api.context import Operation
from gateway.exchange import Exchange
from gateway.histogram import Histogram
from gateway.metering import Usage
from gateway.request_head import request_head
from gateway.telemetry.otlp import encode_spans, encoded_spans, span_template
from gateway.telemetry.series import Histograms
from gateway.telemetry.trace_context import SAMPLED, UNSAMPLED, Sampler, SpanContext, new_trace_line
from gateway.telemetry.tracer import Tracer
from gateway.trace import Trace

DIGITS = "019a22b306007abc8def0123456789ab"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_callers_trace_goes_on() -> None:
    context = Sampler(1.0).context(f"00-{TRACE}-{PARENT}-00".encode(), DIGITS)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (TRACE, PARENT, False)
    assert context.header() == f"00-{TRACE}-{DIGITS[16:]}-00".encode()


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        b"",
        b"00-abc",
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE}-{PARENT}-01-more".encode(),
    ],
)
def test_what_is_malformed_begins_a_trace_of_its_own(malformed: bytes | None) -> None:
    context = Sampler(1.0).context(malformed, DIGITS)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (DIGITS, None, True)


def test_of_two_callers_neither_is_believed() -> None:
    headers = [(b"traceparent", f"00-{digit * 32}-{PARENT}-00".encode()) for digit in "ab"]
    head = request_head(Operation.CHAT_COMPLETIONS, [*headers, (b"tracestate", b"vendor=1")])
    exchange = Exchange(asyncio.Transport(), head, lambda: None)
    trace = Trace(f"req_{DIGITS}", Operation.CHAT_COMPLETIONS, 10.0)
    Tracer(1.0).begin(exchange, trace)
    assert exchange.forwarded == new_trace_line(DIGITS, SAMPLED)
    assert trace.span is not None
    assert trace.span.parent_id is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = Sampler(0.0).context(f"01-{TRACE}-{PARENT}-01-more".encode(), DIGITS)
    assert (context.trace_id, context.is_sampled) == (TRACE, True)


@pytest.mark.parametrize(("ratio", "num_taken"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_a_share_is_sampled(ratio: float, num_taken: int) -> None:
    sampler = Sampler(ratio)
    endings = ("00000000", "7fffffff", "80000000", "ffffffff")
    taken = [sampler.takes(DIGITS[:-8] + ending) for ending in endings]
    assert taken == [True] * num_taken + [False] * (4 - num_taken)


@pytest.mark.parametrize(("ratio", "flags"), [(0.0, UNSAMPLED), (1.0, SAMPLED)])
def test_a_trace_that_begins_here_is_told_as_any_other(ratio: float, flags: str) -> None:
    told = Sampler(ratio).context(None, DIGITS).header()
    assert new_trace_line(DIGITS, flags) == b"traceparent: %b\r\n" % told


def test_so_many_series_and_one_for_all_the_others() -> None:
    histograms = Histograms("h", "s", (1.0, 2.0))
    for number in range(300):
        histograms.of((("model", str(number)),)).observe([1.5])
    assert len(histograms.by_labels) == 201
    assert histograms.by_labels[("otel.metric.overflow", True),].counts == [0, 100, 0]
    assert histograms.by_labels[("model", "0"),].counts == [0, 1, 0]


def test_many_values_are_counted_as_one_by_one() -> None:
    bounds = tuple(float(2**power) for power in range(8))
    values = [0.0, 1.0, 1.5, 2.0, 128.0, 129.0, 1e9, *(float(n) for n in range(100))]
    many, single = Histogram(bounds), Histogram(bounds)
    many.observe(values)
    for value in values:
        single.observe([value])
    assert many.counts == single.counts
    assert many.total == sum(values)


def ended(*, is_served: bool) -> Trace:
    trace = Trace(f"req_{DIGITS}", Operation.CHAT_COMPLETIONS, 10.0)
    trace.ended_monotonic_s = 10.5
    if is_served:
        trace.usage = Usage(200, 128, 16, UsageSource.ENGINE)
        trace.meter.first_byte_monotonic_s = 10.25
    return trace


def sent(trace: Trace, name: str = "chat m") -> dict[str, Any]:
    """The span as a collector reads it."""
    template = span_template(name, [("pandal.replica", name)], trace, is_failed=False)
    spans = encoded_spans([trace, trace], template, 1_000.0)
    body = json.loads(encode_spans({"service.name": "s"}, spans))
    (resource,) = body["resourceSpans"]
    first, second = resource["scopeSpans"][0]["spans"]
    assert first == second
    return {**first, "attributes": {a["key"]: a["value"] for a in first["attributes"]}}


def test_a_span_tells_when_whose_and_how_much() -> None:
    assert sent(ended(is_served=True)) == {
        "traceId": DIGITS,
        "spanId": DIGITS[16:],
        "startTimeUnixNano": "1010000000000",
        "endTimeUnixNano": "1010500000000",
        "name": "chat m",
        "kind": 2,
        "attributes": {
            "pandal.replica": {"stringValue": "chat m"},
            "pandal.request.id": {"stringValue": f"req_{DIGITS}"},
            "gen_ai.usage.input_tokens": {"intValue": "200"},
            "gen_ai.usage.output_tokens": {"intValue": "16"},
            "gen_ai.usage.cache_read.input_tokens": {"intValue": "128"},
            "pandal.ttft_s": {"doubleValue": 0.25},
        },
    }


def test_the_span_of_a_callers_trace_names_its_parent() -> None:
    trace = ended(is_served=False)
    trace.span = SpanContext(TRACE, DIGITS[16:], PARENT, True)
    span = sent(trace)
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, PARENT)
    assert set(span["attributes"]) == {"pandal.replica", "pandal.request.id"}


def test_a_name_may_be_anything() -> None:
    name = 'chat 100%b "%d" [] \\'
    span = sent(ended(is_served=True), name)
    assert span["name"] == name
    assert span["attributes"]["pandal.replica"] == {"stringValue": name}
