"""The end of an admitted request, exactly once: quota settled, event written.

``Settlement.close`` is synchronous, so no cancellation can come between its two halves; it only
starts the writing, which goes on without the request.  Whoever must not answer before it is done
waits on the ``Closing``.  What the request teaches is learned in the event loop's next turn: an
answer that was served neither waits for it nor fails with it.
"""

from dataclasses import dataclass

import msgspec

from contracts.usage import Outcome
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.verdict import Reservation
from gateway.api.context import RequestContext
from gateway.completion import Broadcast
from gateway.event_encoder import EventEncoder
from gateway.experience import Experience
from gateway.metering import Meter, Priced, Usage
from gateway.outbox.spool import Spool
from gateway.turnstile import Turnstile


class Closing(msgspec.Struct, frozen=True):
    """``None`` where a request was withdrawn: it has no usage, and no event."""

    usage: Usage | None
    outcome: Outcome | None
    committed: Broadcast[None] | None  # the event is on disk
    settled: Broadcast[bool]  # the store has confirmed, or did not in time

    async def until_kept(self) -> None:
        """Within the bounds of both.  Raises SpoolUnavailable."""
        if self.committed is not None:
            await self.committed
        await self.settled  # as a rule it came first


@dataclass(frozen=True, slots=True)
class SettlementDesk:
    """What every settlement needs."""

    limiter: RedisLimiter
    spool: Spool
    events: EventEncoder
    turnstile: Turnstile
    experience: Experience
    waits: bool  # False: a crash may lose the usage of answers that ended milliseconds before


class Settlement:
    """Owns the end of one request: the first ``close`` wins, later ones change nothing."""

    closing: Closing | None = None

    def __init__(
        self, desk: SettlementDesk, context: RequestContext, reservation: Reservation, meter: Meter
    ) -> None:
        self._desk = desk
        self._context = context
        self._reservation = reservation
        self._meter = meter
        self._has_turn = context.grant.admission.ttft_target_ms is not None

    @property
    def turn(self) -> int:
        """See ``verdict.turn_of``."""
        return self._reservation.turn

    def close(self, usage: Usage, outcome: Outcome) -> Closing:
        if self.closing is None:
            context, desk, meter = self._context, self._desk, self._meter
            reservation, spool = self._reservation, desk.spool
            plan: Priced = reservation.plan
            if meter.served is not None:
                context, plan = meter.served.context, meter.served.plan
            event = desk.events.encode(context, meter, usage, outcome, spool.next_seq)
            committed = spool.append(event)
            total_tokens = usage.prompt_tokens + usage.completion_tokens
            weight = context.grant.admission.cached_token_weight
            settled = desk.limiter.settle(
                reservation,
                used_tokens=total_tokens,
                used_nano_usd=plan.nano_usd(
                    uncached=usage.prompt_tokens - usage.cached_prompt_tokens,
                    cached=usage.cached_prompt_tokens,
                    output=usage.completion_tokens,
                ),
                # The settled total and the ledger know all.
                limited_tokens=total_tokens - int(usage.cached_prompt_tokens * (1.0 - weight)),
            )
            self.closing = Closing(usage, outcome, committed, settled)
            if self._has_turn:  # where it has waited and was charged, whoever served it then
                desk.turnstile.settle(self._context, meter, total_tokens)
            desk.experience.note_soon(context, meter.replica, usage, outcome)
        return self.closing

    def withdraw(self) -> Closing:
        """As ``close``, for a request that nobody has begun: as if it had never been admitted."""
        if self.closing is None:
            settled = self._desk.limiter.release(self._reservation)
            self.closing = Closing(None, None, None, settled)
            if self._has_turn:
                self._desk.turnstile.settle(self._context, self._meter, 0)
        return self.closing
