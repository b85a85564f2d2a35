"""What became of each request: one log line and a handful of counters."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from contracts.usage import Outcome
from gateway.admission.quota_plan import QuotaPlan, rule_in_words
from gateway.admission.verdict import Budget
from gateway.api.context import InferenceRequest, Operation
from gateway.clock import Clock
from gateway.metering import Meter, Usage
from gateway.metrics import Metrics
from gateway.policies import Grant

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

    def __init__(self, request_id: str, operation: Operation, started_monotonic_s: float) -> None:
        self.request_id = request_id
        self.operation = operation
        self.started_monotonic_s = started_monotonic_s
        self.meter = Meter()


_HEAD = (
    b'{"level":"info","service":"gateway","logger":"gateway.access_log","message":"request",'
    b'"at":%b,"request_id":"%b","endpoint":"%b","status":%d,"latency_ms":%.3f'
)
_encode = msgspec.json.Encoder().encode  # of what may need JSON's escapes


class AccessLog:
    """Formats its lines itself: one a request, where ``logging`` would cost as much as routing."""

    def __init__(self, metrics: Metrics, clock: Clock, write: Callable[[bytes], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._write = write
        self._is_on = logger.isEnabledFor(logging.INFO)
        self._second = -1.0  # whose date and time these are
        self._date_and_time = b""

    def begin(self, request_id: str, operation: Operation) -> Trace:
        self._metrics.num_active += 1
        return Trace(request_id, operation, self._clock.monotonic_s())

    def finish(self, trace: Trace) -> None:
        self._count(trace)
        if self._is_on:
            self._write(self._line(trace))

    def note_shadows(self, plan: QuotaPlan, shadows: int) -> None:
        """Rules in shadow would have refused an admitted request: ``shadows``, in bits."""
        for position, rule in enumerate(plan.shadows):
            if shadows >> position & 1:
                words = ", ".join(part for part in (plan.tenant_id, rule_in_words(rule)) if part)
                self._metrics.count_shadow_refusal(words)

    def _count(self, trace: Trace) -> None:
        metrics, usage = self._metrics, trace.usage
        metrics.num_active -= 1
        metrics.requests[trace.operation, trace.status] += 1
        if trace.reason is not None:
            metrics.count_refusal(trace.reason)
        if usage is not None:
            cached = usage.cached_prompt_tokens
            metrics.num_cached_tokens += cached
            metrics.num_input_tokens += usage.prompt_tokens - cached
            metrics.num_output_tokens += usage.completion_tokens
        meter = trace.meter
        first_byte = meter.first_byte_monotonic_s
        if first_byte is not None:
            metrics.ttft_s.observe(first_byte - trace.started_monotonic_s)
        if meter.num_breaks:
            metrics.num_breaks += meter.num_breaks
            for seconds in meter.recoveries_s:
                metrics.recovery_s.observe(seconds)

    def _now(self) -> bytes:
        """As a JSON string; a second's date and time are written once."""
        second, fraction = divmod(self._clock.wall_s(), 1)
        if second != self._second:
            self._second = second
            self._date_and_time = (
                f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}".encode()
            )
        return b'"%b.%06dZ"' % (self._date_and_time, fraction * 1e6)

    def _line(self, trace: Trace) -> bytes:
        """Fields as in ``contracts.logs``; without those of steps that it did not reach."""
        started_s, meter = trace.started_monotonic_s, trace.meter
        line = _HEAD % (
            self._now(),
            trace.request_id.encode(),
            trace.operation.encode(),
            trace.status,
            (self._clock.monotonic_s() - started_s) * 1e3,
        )
        if trace.grant is not None:
            tenant_id, key_id = trace.grant.tenant.tenant_id, trace.grant.key.key_id
            line += b',"tenant_id":%b,"key_id":%b' % (_encode(tenant_id), _encode(key_id))
        if trace.request is not None:
            is_stream = b"true" if trace.request.is_stream else b"false"
            line += b',"model":%b,"is_stream":%b' % (_encode(trace.request.model), is_stream)
        if meter.replica is not None:
            line += b',"replica":%b' % _encode(meter.replica)
        if trace.reason is not None:
            line += b',"reason":%b' % _encode(trace.reason)
        if trace.outcome is not None:
            line += b',"outcome":%b' % _encode(trace.outcome)
        if trace.usage is not None:
            tokens = trace.usage.prompt_tokens, trace.usage.completion_tokens
            line += b',"input_tokens":%d,"output_tokens":%d' % tokens
        if meter.first_byte_monotonic_s is not None:
            line += b',"ttft_ms":%.3f' % ((meter.first_byte_monotonic_s - started_s) * 1e3)
        if meter.num_breaks:
            line += b',"num_breaks":%d' % meter.num_breaks
        return line + b"}\n"
