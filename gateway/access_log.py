"""What became of each request: one log line and a handful of counters."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from contracts.usage import Outcome
from gateway.admission.limiter import Budget
from gateway.api.context import InferenceRequest, Operation
from gateway.clock import Clock
from gateway.metering import Meter, Usage
from gateway.metrics import Metrics
from gateway.policies import Grant

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's code for a client that did not wait; never sent


@dataclass(slots=True)
class Trace:
    """One request as far as it got; ``None`` where it did not get."""

    request_id: str
    operation: Operation
    started_monotonic_s: float
    status: int = CLIENT_CLOSED_REQUEST
    reason: str | None = None  # the error's code
    grant: Grant | None = None
    request: InferenceRequest | None = None
    budget: Budget | None = None
    usage: Usage | None = None
    outcome: Outcome | None = None
    meter: Meter = field(default_factory=Meter)


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What varies in a line of the access log, spelled as in ``contracts.logs``."""

    at: datetime
    request_id: str
    endpoint: str
    status: int
    latency_ms: float
    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    is_stream: bool | None = None
    replica: str | None = None
    reason: str | None = None
    outcome: Outcome | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None


_CONSTANT = (
    b'{"level":"info","service":"gateway","logger":"gateway.access_log","message":"request",'
)
_encoder = msgspec.json.Encoder()


class AccessLog:
    """Formats its lines itself: one a request, where ``logging`` would cost as much as routing."""

    def __init__(self, metrics: Metrics, clock: Clock, write: Callable[[bytes], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._write = write
        self._is_on = logger.isEnabledFor(logging.INFO)

    def begin(self, request_id: str, operation: Operation) -> Trace:
        self._metrics.num_active += 1
        return Trace(request_id, operation, self._clock.monotonic_s())

    def finish(self, trace: Trace) -> None:
        self._metrics.num_active -= 1
        self._count(trace)
        if self._is_on:
            self._write(b"%b%b\n" % (_CONSTANT, _encoder.encode(self._line(trace))[1:]))

    def _count(self, trace: Trace) -> None:
        metrics, usage = self._metrics, trace.usage
        metrics.count_request(trace.operation.value, trace.status)
        if trace.reason is not None:
            metrics.count_refusal(trace.reason)
        if usage is not None:
            metrics.count_tokens(
                uncached=usage.prompt_tokens - usage.cached_prompt_tokens,
                cached=usage.cached_prompt_tokens,
                output=usage.completion_tokens,
            )
        first_byte = trace.meter.first_byte_monotonic_s
        if first_byte is not None:
            metrics.observe_ttft(first_byte - trace.started_monotonic_s)

    def _line(self, trace: Trace) -> _Line:
        started_s, first_byte_s = trace.started_monotonic_s, trace.meter.first_byte_monotonic_s
        line = _Line(
            at=self._clock.now(),
            request_id=trace.request_id,
            endpoint=trace.operation,
            status=trace.status,
            latency_ms=round((self._clock.monotonic_s() - started_s) * 1e3, 3),
            replica=trace.meter.replica,
            reason=trace.reason,
            outcome=trace.outcome,
        )
        if trace.grant is not None:
            line.tenant_id, line.key_id = trace.grant.tenant.tenant_id, trace.grant.key.key_id
        if trace.request is not None:
            line.model, line.is_stream = trace.request.model, trace.request.is_stream
        if trace.usage is not None:
            line.input_tokens = trace.usage.prompt_tokens
            line.output_tokens = trace.usage.completion_tokens
        if first_byte_s is not None:
            line.ttft_ms = round((first_byte_s - started_s) * 1e3, 3)
        return line
