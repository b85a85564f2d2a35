"""The end of an admitted request, exactly once: quota settled, event written.

``Settlement.close`` is synchronous, so no cancellation can come between its two halves; it only
starts the writing, which goes on without the request.  Whoever must not answer before it is done
waits on the ``Closing``.
"""

import asyncio
from dataclasses import dataclass

from contracts.usage import Outcome, encode_usage_event
from gateway.admission.limiter import Reservation
from gateway.admission.redis_limiter import RedisLimiter
from gateway.api.context import RequestContext
from gateway.errors import SpoolUnavailable
from gateway.metering import EventSource, Meter, Usage
from gateway.outbox.spool import Spool


@dataclass(frozen=True, slots=True)
class Closing:
    """``None`` where a request was withdrawn: it has no usage, and no event."""

    usage: Usage | None
    outcome: Outcome | None
    committed: "asyncio.Future[None] | None"  # the event is on disk
    settled: "asyncio.Future[None]"  # the store has confirmed


@dataclass(frozen=True, slots=True)
class SettlementDesk:
    """What every settlement needs."""

    limiter: RedisLimiter
    spool: Spool
    source: EventSource
    commit_hold_s: float
    settle_hold_s: float

    async def hold(self, closing: Closing) -> None:
        """Until committed and settled, within bounds.  Raises SpoolUnavailable."""
        committed = closing.committed
        if committed is not None and not await _done_within(committed, self.commit_hold_s):
            raise SpoolUnavailable("The usage of this request could not be recorded in time.")
        await _done_within(closing.settled, self.settle_hold_s)  # as a rule it came first


class Settlement:
    """Owns the end of one request: the first ``close`` wins, later ones change nothing."""

    def __init__(
        self, desk: SettlementDesk, context: RequestContext, reservation: Reservation, meter: Meter
    ) -> None:
        self._desk = desk
        self._context = context
        self._reservation = reservation
        self._meter = meter
        self.closing: Closing | None = None

    def close(self, usage: Usage, outcome: Outcome) -> Closing:
        if self.closing is None:
            context, desk = self._context, self._desk
            committed = desk.spool.append(
                lambda seq: encode_usage_event(
                    desk.source.event(context, self._meter, usage, outcome, seq)
                )
            )
            settled = desk.limiter.settle(self._reservation, usage.total_tokens)
            self.closing = Closing(usage, outcome, committed, settled)
        return self.closing

    def withdraw(self) -> Closing:
        """As ``close``, for a request that nobody has begun: as if it had never been admitted."""
        if self.closing is None:
            settled = self._desk.limiter.release(self._reservation)
            self.closing = Closing(None, None, None, settled)
        return self.closing


async def _done_within(future: "asyncio.Future[None]", seconds: float) -> bool:
    """Leaves the future alone when time is up, which ``wait_for`` would not."""
    if not future.done():
        await asyncio.wait((future,), timeout=seconds)
    return future.done()
