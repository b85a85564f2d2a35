"""What became of each request: one log line and a handful of counters."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from contracts.usage import Outcome
from gateway.admission.quota_plan import QuotaPlan
from gateway.admission.verdict import Budget
from gateway.api.context import InferenceRequest, Operation
from gateway.clock import Clock
from gateway.exchange import Exchange
from gateway.metering import Meter, Usage
from gateway.metrics import Metrics
from gateway.policies import Grant
from gateway.telemetry.trace_context import SpanContext

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's code for a client that did not wait; never sent


class Trace:
    """One request as far as it got; ``None`` where it did not get."""

    status: int = CLIENT_CLOSED_REQUEST
    reason: str | None = None  # the error's code
    grant: Grant | None = None
    request: InferenceRequest | None = None
    budget: Budget | None = None
    usage: Usage | None = None
    outcome: Outcome | None = None
    span: SpanContext | None = None  # None: nobody traces
    counted_s: float | None = None  # how long its prompt's exact count took; None: it needs none
    admitted_monotonic_s: float | None = None
    num_shadows: int = 0  # rules on trial that would have refused it
    is_counted_elsewhere = False  # it reads an answer whose request has a trace of its own

    def __init__(self, request_id: str, operation: Operation, started_monotonic_s: float) -> None:
        self.request_id = request_id
        self.operation = operation
        self.started_monotonic_s = started_monotonic_s
        self.meter = Meter()


_LINE = (
    b'{"level":"info","service":"gateway","logger":"gateway.access_log","message":"request",'
    b'"at":"%b.%06dZ","request_id":"%b","status":%d,"latency_ms":%.3f'
    b"%b%b%b%b%b%b%b%b%b%b%b%b%b}\n"
)
_TOKENS = b',"input_tokens":%d,"output_tokens":%d'
_TTFT = b',"ttft_ms":%.3f'
_ADMIT = b',"admit_ms":%.3f'
_COUNT, _QUEUE, _SEND = b',"count_ms":%.3f', b',"queue_ms":%.3f', b',"send_ms":%.3f'
_COSTS = b',"route_costs":%b'
_IS_STREAM = (b',"is_stream":false', b',"is_stream":true')
_MAX_FRAGMENTS = 10_000
_encode = msgspec.json.Encoder().encode  # of what may need JSON's escapes


class _Fragments(dict[str, bytes]):
    """One member of the line by its value, written once."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._beginning = f',"{name}":'.encode()

    def __missing__(self, value: str) -> bytes:
        if len(self) >= _MAX_FRAGMENTS:
            self.clear()
        fragment = self[value] = self._beginning + _encode(value)
        return fragment


class AccessLog:
    """Formats its lines itself: one a request, where ``logging`` would cost as much as routing."""

    def __init__(self, metrics: Metrics, clock: Clock, write: Callable[[bytes], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._write = write
        self._is_on = logger.isEnabledFor(logging.INFO)
        self._second = -1  # whose date and time these are
        self._date_and_time = b""
        self._endpoint = _Fragments("endpoint")
        self._tenant, self._key = _Fragments("tenant_id"), _Fragments("key_id")
        self._model, self._replica = _Fragments("model"), _Fragments("replica")
        self._route, self._home = _Fragments("route"), _Fragments("home")
        self._reason, self._outcome = _Fragments("reason"), _Fragments("outcome")

    def begin(self, request_id: str, exchange: Exchange) -> Trace:
        self._metrics.num_active += 1
        return Trace(request_id, exchange.head.operation, self._clock.monotonic_s())

    def finish(self, trace: Trace) -> None:
        self._metrics.num_active -= 1
        if not trace.is_counted_elsewhere:
            self._count(trace)
            if self._is_on:
                self._write(self._line(trace))

    def note_shadows(self, trace: Trace, plan: QuotaPlan, shadows: int) -> None:
        """Rules in shadow would have refused an admitted request: ``shadows``, in bits."""
        trace.num_shadows = shadows.bit_count()
        for position, rule in enumerate(plan.shadows):
            if shadows >> position & 1:
                self._metrics.shadows.count(plan.tenant_id, rule)

    def _count(self, trace: Trace) -> None:
        metrics, usage = self._metrics, trace.usage
        metrics.requests[trace.operation, trace.status] += 1
        if trace.reason is not None:
            metrics.count_refusal(trace.reason)
        if usage is not None:
            cached = usage.cached_prompt_tokens
            metrics.num_cached_tokens += cached
            metrics.num_input_tokens += usage.prompt_tokens - cached
            metrics.num_output_tokens += usage.completion_tokens
        if metrics.tenants is not None and trace.grant is not None:
            tokens = None if usage is None else _by_class(usage)
            metrics.tenants.count(trace.grant.tenant.tenant_id, trace.status, tokens)
        meter = trace.meter
        first_byte = meter.first_byte_monotonic_s
        if first_byte is not None:
            metrics.ttft_s.observe(first_byte - trace.started_monotonic_s)
        if meter.route is not None:
            metrics.routes[meter.route] += 1
        if meter.served is not None:
            metrics.num_fallbacks += 1
        if meter.num_breaks:
            metrics.num_breaks += meter.num_breaks
            for seconds in meter.recoveries_s:
                metrics.recovery_s.observe(seconds)

    def _turn_second(self, second: int) -> None:
        """Its date and time are written once."""
        self._second = second
        self._date_and_time = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}".encode()

    def _line(self, trace: Trace) -> bytes:
        """Fields as in ``contracts.logs``; without those of steps that it did not reach.

        Times of steps are from its beginning, but for ``count_ms`` and ``queue_ms``, which few
        requests have: how long they took.
        """
        started_s, meter, usage = trace.started_monotonic_s, trace.meter, trace.usage
        first_byte_s, admitted_s = meter.first_byte_monotonic_s, trace.admitted_monotonic_s
        counted_s, queued_s, sent_s = trace.counted_s, meter.queued_s, meter.sent_monotonic_s
        members = None if meter.alike is None else meter.alike.members
        wall_s = self._clock.wall_s()
        second = int(wall_s)
        if second != self._second:
            self._turn_second(second)
        return _LINE % (
            self._date_and_time,
            (wall_s - second) * 1e6,
            trace.request_id.encode(),
            trace.status,
            (self._clock.monotonic_s() - started_s) * 1e3,
            self._members(trace) if members is None else members,
            b"" if meter.route is None else self._route[meter.route],
            b"" if meter.home is None else self._home[meter.home],
            b"" if meter.route_costs is None else _COSTS % _encode(meter.route_costs),
            b"" if trace.reason is None else self._reason[trace.reason],
            b"" if usage is None else _TOKENS % (usage.prompt_tokens, usage.completion_tokens),
            b"" if admitted_s is None else _ADMIT % ((admitted_s - started_s) * 1e3),
            b"" if counted_s is None else _COUNT % (counted_s * 1e3),
            b"" if queued_s is None else _QUEUE % (queued_s * 1e3),
            b"" if sent_s is None else _SEND % ((sent_s - started_s) * 1e3),
            b"" if first_byte_s is None else _TTFT % ((first_byte_s - started_s) * 1e3),
            b',"num_breaks":%d' % meter.num_breaks if meter.num_breaks else b"",
            b',"num_shadows":%d' % trace.num_shadows if trace.num_shadows else b"",
        )

    def _members(self, trace: Trace) -> bytes:
        """That are the same of many, and written once for those that complete."""
        grant, request, meter = trace.grant, trace.request, trace.meter
        members = b"%b%b%b%b%b%b%b" % (
            self._endpoint[trace.operation],
            b"" if grant is None else self._tenant[grant.tenant.tenant_id],
            b"" if grant is None else self._key[grant.key.key_id],
            b"" if request is None else self._model[request.model],
            b"" if request is None else _IS_STREAM[request.is_stream],
            b"" if meter.replica is None else self._replica[meter.replica],
            b"" if trace.outcome is None else self._outcome[trace.outcome],
        )
        if meter.alike is not None:
            meter.alike.members = members
        return members


def _by_class(usage: Usage) -> tuple[int, int, int]:
    cached = usage.cached_prompt_tokens
    return usage.prompt_tokens - cached, cached, usage.completion_tokens
