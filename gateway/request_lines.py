"""The log's line of each request, in the fields of ``contracts.logs``.

What the lines of requests that are alike have in common is encoded once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from contracts.usage import Outcome
from gateway.policies import Grant
from gateway.templates import template_of
from gateway.trace import Trace

_MAX_KINDS: Final = 10_000  # a kilobyte each
_encode = msgspec.json.Encoder().encode


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


_Kind = tuple[object, ...]
_Holes = Mapping[str, tuple[object, bytes]]  # by field: a value that no line has, and its form
_REFUSED: Final[_Holes] = {
    "at": (datetime(1, 1, 1, tzinfo=UTC), b"%b"),
    "request_id": ("\x01request", b'"%b"'),
    "latency_ms": (9.1e-101, b"%.3f"),
    "auth_ms": (9.2e-101, b"%.3f"),
}
_SERVED: Final[_Holes] = {  # in the order of the line
    "at": _REFUSED["at"],
    "request_id": _REFUSED["request_id"],
    "latency_ms": _REFUSED["latency_ms"],
    "input_tokens": (9_100_000_000_000_000_001, b"%d"),
    "output_tokens": (9_100_000_000_000_000_002, b"%d"),
    "auth_ms": _REFUSED["auth_ms"],
    "admit_ms": (9.3e-101, b"%.3f"),
    "send_ms": (9.4e-101, b"%.3f"),
    "ttft_ms": (9.5e-101, b"%.3f"),
}


class _Template(NamedTuple):
    grant: Grant | None  # kept, so that its id is its own
    line: bytes


class RequestLines:
    def __init__(self) -> None:
        self._kinds: dict[_Kind, _Template] = {}

    def of(self, traces: Iterable[Trace], wall_minus_monotonic_s: float) -> bytes:
        return b"".join([self._line_of(trace, wall_minus_monotonic_s) for trace in traces])

    def _line_of(self, trace: Trace, wall_minus_monotonic_s: float) -> bytes:
        """Most by far are of requests that were served, or were not admitted."""
        meter, usage, auth_s = trace.meter, trace.usage, trace.authenticated_monotonic_s
        request, admit_s = trace.request, trace.admitted_monotonic_s
        sent_s, first_s = meter.sent_monotonic_s, meter.first_byte_monotonic_s
        began_s, ended_s = trace.started_monotonic_s, trace.ended_monotonic_s
        is_rare = meter.queued_s is not None or meter.num_breaks or meter.route_costs is not None
        if is_rare or trace.num_shadows or trace.counted_s is not None or auth_s is None:
            return _in_full(_line(trace, wall_minus_monotonic_s))
        assert ended_s is not None
        kind: _Kind = (
            id(trace.grant), trace.status, trace.operation,
            None if request is None else request.model, request is None or request.is_stream,
            trace.reason, meter.replica, trace.outcome, meter.route, meter.home,
            usage is None, admit_s is None, sent_s is None, first_s is None,
        )  # fmt: skip
        known = self._kinds.get(kind)
        if known is None:
            return self._first(kind, trace, wall_minus_monotonic_s)
        at = _encode(datetime.fromtimestamp(ended_s + wall_minus_monotonic_s, UTC))
        request_id, latency_ms = trace.request_id.encode(), (ended_s - began_s) * 1e3
        auth_ms = (auth_s - began_s) * 1e3
        if usage is None or admit_s is None or sent_s is None or first_s is None:
            return known.line % (at, request_id, latency_ms, auth_ms)
        return known.line % (
            at,
            request_id,
            latency_ms,
            usage.prompt_tokens,
            usage.completion_tokens,
            auth_ms,
            (admit_s - began_s) * 1e3,
            (sent_s - began_s) * 1e3,
            (first_s - began_s) * 1e3,
        )

    def _first(self, kind: _Kind, trace: Trace, wall_minus_monotonic_s: float) -> bytes:
        """Of its kind, if that has a template: it got to the end, or not to a reservation."""
        line, holes = _line(trace, wall_minus_monotonic_s), None
        reached = [getattr(line, name) is not None for name in _SERVED]
        if all(reached):
            holes = _SERVED
        elif sum(reached) == len(_REFUSED):
            holes = _REFUSED
        if holes is not None:
            marked = msgspec.structs.replace(line, **{n: mark for n, (mark, _) in holes.items()})
            template = template_of(_in_full(marked), holes.values())
            if template is not None:
                if len(self._kinds) >= _MAX_KINDS:
                    self._kinds.clear()
                self._kinds[kind] = _Template(trace.grant, template)
        return _in_full(line)


def _in_full(line: _Line) -> bytes:
    return _encode(line) + b"\n"


def _line(trace: Trace, wall_minus_monotonic_s: float) -> _Line:
    began_s, meter, usage = trace.started_monotonic_s, trace.meter, trace.usage
    grant, request, ended_s = trace.grant, trace.request, trace.ended_monotonic_s
    assert ended_s is not None
    return _Line(
        level="info",
        service="gateway",
        logger="gateway.access_log",
        message="request",
        at=datetime.fromtimestamp(ended_s + wall_minus_monotonic_s, UTC),
        request_id=trace.request_id,
        status=trace.status,
        latency_ms=_ms(ended_s - began_s),
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
        auth_ms=_since(began_s, trace.authenticated_monotonic_s),
        admit_ms=_since(began_s, trace.admitted_monotonic_s),
        count_ms=None if trace.counted_s is None else _ms(trace.counted_s),
        queue_ms=None if meter.queued_s is None else _ms(meter.queued_s),
        send_ms=_since(began_s, meter.sent_monotonic_s),
        ttft_ms=_since(began_s, meter.first_byte_monotonic_s),
        num_breaks=meter.num_breaks,
        num_shadows=trace.num_shadows,
    )


def _since(began_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else _ms(at_s - began_s)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
