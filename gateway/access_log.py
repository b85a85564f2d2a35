"""What became of each request: one log line and a handful of counters."""

import logging
from dataclasses import dataclass, field

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


class AccessLog:
    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def begin(self, request_id: str, operation: Operation) -> Trace:
        self._metrics.num_active += 1
        return Trace(request_id, operation, self._clock.monotonic_s())

    def finish(self, trace: Trace) -> None:
        self._metrics.num_active -= 1
        self._count(trace)
        logger.info("request", extra=self._fields(trace))

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

    def _fields(self, trace: Trace) -> dict[str, object]:
        grant, request, usage = trace.grant, trace.request, trace.usage
        first_byte = trace.meter.first_byte_monotonic_s
        started = trace.started_monotonic_s
        fields = {
            "request_id": trace.request_id,
            "tenant_id": None if grant is None else grant.tenant.tenant_id,
            "key_id": None if grant is None else grant.key.key_id,
            "endpoint": trace.operation.value,
            "model": None if request is None else request.model,
            "is_stream": None if request is None else request.is_stream,
            "replica": trace.meter.replica,
            "status": trace.status,
            "reason": trace.reason,
            "outcome": None if trace.outcome is None else trace.outcome.value,
            "input_tokens": None if usage is None else usage.prompt_tokens,
            "output_tokens": None if usage is None else usage.completion_tokens,
            "ttft_ms": None if first_byte is None else round((first_byte - started) * 1e3, 3),
            "latency_ms": round((self._clock.monotonic_s() - started) * 1e3, 3),
        }
        return {name: value for name, value in fields.items() if value is not None}
