"""The log's line of each request, in the fields of ``contracts.logs``.

It begins with what the lines of requests that are alike have in common, which is encoded once.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from contracts.usage import Outcome
from gateway.request_kinds import Kind
from gateway.trace import Trace

_MAX_KINDS: Final = 10_000  # half a kilobyte each
_from_timestamp = datetime.fromtimestamp
_encoder = msgspec.json.Encoder()


class _Alike(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    level: str
    service: str
    logger: str
    message: str
    status: int
    endpoint: str
    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    is_stream: bool | None = None
    replica: str | None = None
    outcome: Outcome | None = None
    route: str | None = None
    home: str | None = None
    reason: str | None = None
    num_breaks: int = 0


class _Own(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Without the fields of steps that it did not reach.

    Times of steps are from its beginning, but for ``count_ms`` and ``queue_ms``, which few
    requests have: how long they took.  To the microsecond.
    """

    at: datetime
    request_id: str
    latency_ms: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    auth_ms: float | None = None
    admit_ms: float | None = None
    send_ms: float | None = None
    ttft_ms: float | None = None
    count_ms: float | None = None
    queue_ms: float | None = None
    num_shadows: int = 0
    route_costs: str | None = None


class RequestLines:
    def __init__(self) -> None:
        self._beginnings: dict[Kind, bytes] = {}

    def of(
        self, traces: Sequence[Trace], kinds: Sequence[Kind], wall_minus_monotonic_s: float
    ) -> bytes:
        """``kinds``: each trace's."""
        own = _encoder.encode_lines([_own(trace, wall_minus_monotonic_s) for trace in traces])
        return b"".join(
            [
                (self._beginnings.get(kind) or self._begin(kind, trace)) + line[1:]
                for trace, kind, line in zip(traces, kinds, own.splitlines(True), strict=True)
            ]
        )

    def _begin(self, kind: Kind, trace: Trace) -> bytes:
        if len(self._beginnings) >= _MAX_KINDS:
            self._beginnings.clear()
        beginning = self._beginnings[kind] = _encoder.encode(_alike(trace))[:-1] + b","
        return beginning


def _alike(trace: Trace) -> _Alike:
    meter, grant, request = trace.meter, trace.grant, trace.request
    return _Alike(
        level="info",
        service="gateway",
        logger="gateway.access_log",
        message="request",
        status=trace.status,
        endpoint=trace.operation,
        tenant_id=None if grant is None else grant.tenant.tenant_id,
        key_id=None if grant is None else grant.key.key_id,
        model=None if request is None else request.model,
        is_stream=None if request is None else request.is_stream,
        replica=meter.replica,
        outcome=trace.outcome,
        route=meter.route,
        home=meter.home,
        reason=trace.reason,
        num_breaks=meter.num_breaks,
    )


def _own(trace: Trace, wall_minus_monotonic_s: float) -> _Own:
    meter, usage, auth_s = trace.meter, trace.usage, trace.authenticated_monotonic_s
    admit_s, count_s, queue_s = trace.admitted_monotonic_s, trace.counted_s, meter.queued_s
    sent_s, first_s = meter.sent_monotonic_s, meter.first_byte_monotonic_s
    ended_s = trace.ended_monotonic_s
    assert ended_s is not None
    began_us = trace.started_monotonic_s * 1e6 - 0.5  # half of one less: to the nearest
    return _Own(
        _from_timestamp(ended_s + wall_minus_monotonic_s, UTC),
        trace.request_id,
        int(ended_s * 1e6 - began_us) / 1e3,
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
        None if auth_s is None else int(auth_s * 1e6 - began_us) / 1e3,
        None if admit_s is None else int(admit_s * 1e6 - began_us) / 1e3,
        None if sent_s is None else int(sent_s * 1e6 - began_us) / 1e3,
        None if first_s is None else int(first_s * 1e6 - began_us) / 1e3,
        None if count_s is None else round(count_s * 1e3, 3),
        None if queue_s is None else round(queue_s * 1e3, 3),
        trace.num_shadows,
        meter.route_costs,
    )
