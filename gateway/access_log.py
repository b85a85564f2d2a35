"""What becomes of each request: one log line, a handful of counters, and a span where one is asked.

A request leaves its trace and is done.  Traces are told a few dozen at a time: the same work over
and over costs a third less than in between all that serves a request.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.admission.quota_plan import QuotaPlan
from gateway.clock import Clock
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.request_kinds import RequestKinds, by_kind
from gateway.request_lines import RequestLines
from gateway.telemetry.tracer import Tracer
from gateway.trace import Trace

logger = logging.getLogger(__name__)

_GATHER_S: Final = 0.05  # a reader of the log does not notice
_MOST_GATHERED: Final = 64  # they keep what their requests were


class AccessLog:
    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        write: Callable[[bytes], None],
        tracer: Tracer | None = None,
    ) -> None:
        """``write`` takes whole lines."""
        self._metrics = metrics
        self._clock = clock
        self._write = write
        self._tracer = tracer
        self._is_on = logger.isEnabledFor(logging.INFO)
        self._kinds = RequestKinds()
        self._lines = RequestLines()
        self._ended: list[Trace] = []

    def begin(self, request_id: str, exchange: Exchange) -> Trace:
        self._metrics.num_active += 1
        came_s = exchange.came_monotonic_s
        if came_s is None:
            came_s = self._clock.monotonic_s()
        trace = Trace(request_id, exchange.head.operation, came_s)
        if self._tracer is not None:
            self._tracer.begin(exchange, trace)
        return trace

    def finish(self, trace: Trace) -> None:
        self._metrics.num_active -= 1
        if trace.is_counted_elsewhere:
            return
        trace.ended_monotonic_s = self._clock.monotonic_s()
        ended = self._ended
        if not ended:
            asyncio.get_running_loop().call_later(_GATHER_S, self.tell)
        ended.append(trace)
        if len(ended) >= _MOST_GATHERED:
            self.tell()

    def tell(self) -> None:
        """Of all that have ended until now."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        kinds = self._kinds.of(ended)
        alike = by_kind(ended, kinds)
        self._metrics.count(alike)
        wall_minus_monotonic_s = self._clock.wall_s() - self._clock.monotonic_s()
        if self._tracer is not None:
            self._tracer.end(alike, wall_minus_monotonic_s)
        if self._is_on:
            self._write(self._lines.of(ended, kinds, wall_minus_monotonic_s))

    def note_shadows(self, trace: Trace, plan: QuotaPlan, shadows: int) -> None:
        """Rules in shadow would have refused an admitted request: ``shadows``, in bits."""
        trace.num_shadows = shadows.bit_count()
        for position, rule in enumerate(plan.shadows):
            if shadows >> position & 1:
                self._metrics.shadows.count(plan.tenant_id, rule)
