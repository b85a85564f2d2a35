"""The log's line of each request, in the fields of ``contracts.logs``."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from contracts.usage import Outcome
from gateway.trace import Trace


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Without the fields of steps that it did not reach.

    Times of steps are from its beginning, but for ``count_ms`` and ``queue_ms``, which few
    requests have: how long they took.  To the microsecond.
    """

    level: str
    service: str
    logger: str
    message: str
    at: datetime
    request_id: str
    status: int
    latency_ms: float
    endpoint: str
    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    is_stream: bool | None = None
    replica: str | None = None
    outcome: Outcome | None = None
    route: str | None = None
    home: str | None = None
    route_costs: str | None = None
    reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    auth_ms: float | None = None
    admit_ms: float | None = None
    count_ms: float | None = None
    queue_ms: float | None = None
    send_ms: float | None = None
    ttft_ms: float | None = None
    num_breaks: int = 0
    num_shadows: int = 0


_encode_lines = msgspec.json.Encoder().encode_lines


def request_lines(traces: Iterable[Trace], wall_minus_monotonic_s: float) -> bytes:
    return _encode_lines([_line(trace, wall_minus_monotonic_s) for trace in traces])


def _line(trace: Trace, wall_minus_monotonic_s: float) -> _Line:
    """A call for each time would cost more than all the rest."""
    began_s, meter, usage = trace.started_monotonic_s, trace.meter, trace.usage
    grant, request, ended_s = trace.grant, trace.request, trace.ended_monotonic_s
    auth_s, admit_s = trace.authenticated_monotonic_s, trace.admitted_monotonic_s
    sent_s, first_s = meter.sent_monotonic_s, meter.first_byte_monotonic_s
    assert ended_s is not None
    return _Line(
        level="info",
        service="gateway",
        logger="gateway.access_log",
        message="request",
        at=datetime.fromtimestamp(ended_s + wall_minus_monotonic_s, UTC),
        request_id=trace.request_id,
        status=trace.status,
        latency_ms=int((ended_s - began_s) * 1e6) / 1e3,
        endpoint=trace.operation,
        tenant_id=None if grant is None else grant.tenant.tenant_id,
        key_id=None if grant is None else grant.key.key_id,
        model=None if request is None else request.model,
        is_stream=None if request is None else request.is_stream,
        replica=meter.replica,
        outcome=trace.outcome,
        route=meter.route,
        home=meter.home,
        route_costs=meter.route_costs,
        reason=trace.reason,
        input_tokens=None if usage is None else usage.prompt_tokens,
        output_tokens=None if usage is None else usage.completion_tokens,
        auth_ms=None if auth_s is None else int((auth_s - began_s) * 1e6) / 1e3,
        admit_ms=None if admit_s is None else int((admit_s - began_s) * 1e6) / 1e3,
        count_ms=None if trace.counted_s is None else _ms(trace.counted_s),
        queue_ms=None if meter.queued_s is None else _ms(meter.queued_s),
        send_ms=None if sent_s is None else int((sent_s - began_s) * 1e6) / 1e3,
        ttft_ms=None if first_s is None else int((first_s - began_s) * 1e6) / 1e3,
        num_breaks=meter.num_breaks,
        num_shadows=trace.num_shadows,
    )


def _ms(seconds: float) -> float:
    return int(seconds * 1e6) / 1e3
