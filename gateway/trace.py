"""One request as far as it got: what the log, the counters and the collector are told of it."""

import msgspec

from contracts.usage import Outcome
from gateway.admission.verdict import Budget
from gateway.api.context import InferenceRequest, Operation
from gateway.metering import Meter, Usage
from gateway.policies import Grant
from gateway.telemetry.trace_context import SpanContext

CLIENT_CLOSED_REQUEST = 499  # nginx's code for a client that did not wait; never sent


class Trace(msgspec.Struct, eq=False):
    """``None`` where it did not get."""

    request_id: str
    operation: Operation
    started_monotonic_s: float
    meter: Meter = msgspec.field(default_factory=Meter)
    status: int = CLIENT_CLOSED_REQUEST
    reason: str | None = None  # the error's code
    grant: Grant | None = None
    request: InferenceRequest | None = None
    budget: Budget | None = None
    usage: Usage | None = None
    outcome: Outcome | None = None
    is_sampled: bool = False  # it leaves a span
    span: SpanContext | None = None  # None: no caller has told of a trace
    counted_s: float | None = None  # how long its prompt's exact count took; None: it needs none
    authenticated_monotonic_s: float | None = None
    admitted_monotonic_s: float | None = None
    ended_monotonic_s: float | None = None
    num_shadows: int = 0  # rules on trial that would have refused it
    is_counted_elsewhere: bool = False  # it reads an answer whose request has a trace of its own
