"""What is told of many requests at once is what would be told of each."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.admission import AdmissionPolicy
from contracts.usage import Outcome, UsageSource
from gateway.api.context import Operation
from gateway.metering import Usage
from gateway.metrics import Metrics, QuotaStanding
from gateway.request_kinds import RequestKinds, by_kind
from gateway.request_lines import RequestLines
from gateway.telemetry.tracer import Tracer
from gateway.trace import Trace
from tests.gateway.fleets import grant_of, inference_request

WALL_S = 1_700_000_000.0
KINDS, GRANT = RequestKinds(), grant_of("acme", AdmissionPolicy())
_times = st.lists(st.integers(0, 10**8), min_size=5, max_size=5).map(sorted)  # in microseconds
_STEPS = ["", "auth", "read", "admit", "send", "ttft"]
_steps = st.sampled_from(_STEPS)  # the last that was reached
_oddities = st.sampled_from([None, "queued", "broken", "provided"])
_names = st.sampled_from(["model-a", "100%d", '"quoted"', "Ünïcode/\u2028", "\x01request"])


def trace_of(number: int, model: str, last: str, oddity: str | None, times_us: list[int]) -> Trace:
    trace = Trace(f"req_{number}", Operation.COMPLETIONS, 1.0)
    at_s = [1.0 + time_us / 1e6 for time_us in times_us]
    trace.ended_monotonic_s, trace.is_sampled = at_s[4], True
    reached = _STEPS.index(last)
    if reached >= 1:
        trace.grant, trace.authenticated_monotonic_s = GRANT, at_s[0]
        trace.status, trace.reason = 429, "rate_limit_exceeded"
    if reached >= 2:
        trace.request = inference_request(model)
    if reached >= 3:
        trace.admitted_monotonic_s = at_s[1]
    if reached >= 4:
        trace.meter.sent_monotonic_s, trace.meter.replica = at_s[2], "r1"
        trace.usage = Usage(number, 0, 2 * number, UsageSource.ENGINE)
    if reached >= 5:
        trace.meter.first_byte_monotonic_s, trace.outcome = at_s[3], Outcome.COMPLETED
        trace.status, trace.reason, trace.meter.route = 200, None, "home"
    if oddity == "queued":
        trace.meter.queued_s, trace.num_shadows = 0.25, 1
    if oddity == "broken":
        trace.meter.num_breaks, trace.meter.recoveries_s = 2, (0.5, 1.0 + number)
    if oddity == "provided" and trace.usage is not None:
        trace.meter.provider = "openai"
        source = UsageSource.PARTIAL if number % 2 else UsageSource.PROVIDER
        trace.usage = msgspec.structs.replace(trace.usage, source=source)
    return trace


def lines_of(*traces: Trace) -> list[dict[str, Any]]:
    block = RequestLines().of(traces, KINDS.of(traces), WALL_S)
    assert block.endswith(b"\n")
    return [json.loads(line) for line in block.splitlines()]


def metrics_of(*batches: Sequence[Trace]) -> list[str]:
    """Without sums of times: they depend on the order."""
    metrics = Metrics(("acme",))
    for traces in batches:
        metrics.count(by_kind(traces, KINDS.of(traces)))
    text = metrics.render(num_spooled=0, num_waiting=0, quota=QuotaStanding(0, 0, is_lost=False))
    return [line for line in text.splitlines() if "_sum " not in line]


def spans_of(*traces: Trace) -> list[bytes]:
    tracer = Tracer(1.0)
    tracer.end(by_kind(traces, KINDS.of(traces)), WALL_S)
    return sorted(tracer.take_spans(len(traces)))


@given(_names, st.lists(st.tuples(_steps, _oddities, _times), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_what_is_told_of_many_is_what_is_told_of_each(
    model: str, requests: list[tuple[str, str | None, list[int]]]
) -> None:
    traces = [trace_of(number, model, *request) for number, request in enumerate(requests)]
    assert lines_of(*traces) == [lines_of(trace)[0] for trace in traces]
    assert spans_of(*traces) == sorted(span for trace in traces for span in spans_of(trace))
    assert metrics_of(traces) == metrics_of(*([trace] for trace in traces))


def test_of_a_kind_each_has_its_own_times_and_counts() -> None:
    traces = [trace_of(n, "m", "ttft", None, [n, 2 * n, 3 * n, 4 * n, 5_000]) for n in (7, 9)]
    assert len(by_kind(traces, KINDS.of(traces))) == 1
    first, second = lines_of(*traces)
    assert (first["request_id"], second["request_id"]) == ("req_7", "req_9")
    assert (second["auth_ms"], second["ttft_ms"], second["latency_ms"]) == (0.009, 0.036, 5.0)
    assert (second["input_tokens"], second["output_tokens"], second["tenant_id"]) == (9, 18, "acme")


def test_a_line_has_the_fields_of_the_steps_that_it_reached() -> None:
    (refused,) = lines_of(trace_of(1, "m", "auth", None, [10, 20, 30, 40, 50]))
    assert set(refused) == {
        "level", "service", "logger", "message", "at", "request_id", "status", "latency_ms",
        "endpoint", "tenant_id", "key_id", "reason", "auth_ms",
    }  # fmt: skip
    (odd,) = lines_of(trace_of(1, "m", "ttft", "queued", [10, 20, 30, 40, 50]))
    assert (odd["queue_ms"], odd["num_shadows"], odd["at"]) == (
        250.0,
        1,
        "2023-11-14T22:13:21.000050Z",
    )
