"""The access log of a gateway whose requests are traced, too.  Without telemetry there is none."""

from collections.abc import Callable

from gateway.access_log import AccessLog, Trace
from gateway.clock import Clock
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.telemetry.tracer import Tracer


class TracingLog(AccessLog):
    def __init__(
        self, metrics: Metrics, clock: Clock, write: Callable[[bytes], None], tracer: Tracer
    ) -> None:
        super().__init__(metrics, clock, write)
        self._tracer = tracer

    def begin(self, request_id: str, exchange: Exchange) -> Trace:
        trace = super().begin(request_id, exchange)
        self._tracer.begin(exchange, trace)
        return trace

    def finish(self, trace: Trace) -> None:
        super().finish(trace)
        if not trace.is_counted_elsewhere:
            self._tracer.end(trace)
