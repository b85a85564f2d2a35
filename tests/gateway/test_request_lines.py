"""A line out of a template says what the line in full would."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.admission import AdmissionPolicy
from contracts.usage import Outcome, UsageSource
from gateway.api.context import Operation
from gateway.metering import Usage
from gateway.request_lines import RequestLines
from gateway.trace import Trace
from tests.gateway.fleets import grant_of, inference_request

WALL_S = 1_700_000_000.0
_times = st.lists(st.integers(0, 10**8), min_size=5, max_size=5).map(sorted)  # in microseconds
_STEPS = ["", "auth", "read", "admit", "send", "ttft"]
_steps = st.sampled_from(_STEPS)  # the last that was reached
_names = st.sampled_from(["model-a", "100%d", '"quoted"', "Ünïcode/\u2028", "\x01request"])


def trace_of(number: int, model: str, last: str, is_odd: bool, times_us: list[int]) -> Trace:
    trace = Trace(f"req_{number}", Operation.COMPLETIONS, 1.0)
    at_s = [1.0 + time_us / 1e6 for time_us in times_us]
    trace.ended_monotonic_s = at_s[4]
    reached = _STEPS.index(last)
    if reached >= 1:
        trace.grant, trace.authenticated_monotonic_s = grant_of("acme", AdmissionPolicy()), at_s[0]
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
    if is_odd:
        trace.meter.queued_s, trace.num_shadows = 0.25, 1
    return trace


def told(lines: RequestLines, *traces: Trace) -> list[dict[str, Any]]:
    block = lines.of(traces, WALL_S)
    assert block.endswith(b"\n")
    return [json.loads(line) for line in block.splitlines()]


@given(_names, st.lists(st.tuples(_steps, st.booleans(), _times), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_each_line_is_as_if_it_were_the_first_of_its_kind(
    model: str, requests: list[tuple[str, bool, list[int]]]
) -> None:
    traces = [trace_of(number, model, *request) for number, request in enumerate(requests)]
    in_full = [told(RequestLines(), trace)[0] for trace in traces]
    assert told(RequestLines(), *traces) == in_full


def test_of_a_kind_each_has_its_own_times_and_counts() -> None:
    traces = [trace_of(n, "m", "ttft", False, [n, 2 * n, 3 * n, 4 * n, 5_000]) for n in (7, 9)]
    first, second = told(RequestLines(), *traces)
    assert (first["request_id"], second["request_id"]) == ("req_7", "req_9")
    assert (second["auth_ms"], second["ttft_ms"], second["latency_ms"]) == (0.009, 0.036, 5.0)
    assert (second["input_tokens"], second["output_tokens"], second["tenant_id"]) == (9, 18, "acme")
