"""Two attempts at once, where the first is slow: whichever begins first is the answer.

The other's connection is closed, so its replica stops within a step; what it has made is nobody's.
"""

import asyncio

from contracts.hedging import HedgePolicy
from gateway.api.context import RequestContext
from gateway.errors import Interrupted, NoReplicaAvailable
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import Meter
from gateway.resilience.attempt import Attempt
from gateway.resilience.attempts import Attempts
from gateway.resilience.breaker_notes import note_end
from gateway.resilience.pause import news_of
from gateway.resilience.retries import Retries
from gateway.upstream.response import UpstreamResponse


class HedgedAttempts(Attempts):
    """Of a stream.  Two are under way once, before its first byte."""

    _is_spent = False
    _is_undecided = False  # the second is all that is left, and has yet to begin

    def __init__(
        self,
        policy: HedgePolicy,
        fleet: Fleet,
        retries: Retries,
        exchange: Exchange,
        context: RequestContext,
        meter: Meter,
    ) -> None:
        super().__init__(fleet, retries, exchange, context, meter)
        self._policy = policy

    async def open(self) -> UpstreamResponse:
        """A stream that broke off is taken up by one after another: see ``reopen``."""
        if self._provider is not None or self._is_spent:
            return await super().open()
        if self._exchange.interruption is not None:  # nothing is sent for a client that left
            raise Interrupted(*self._exchange.interruption)
        begun = await self._first_to_begin()
        is_learned = begun.response.has_begun
        try:
            return await self._open(self._tried, begun)
        finally:
            if begun.response.has_begun and not is_learned:
                self._learn(begun)  # or what is learned could only fall
            if self._is_undecided:
                self._count(is_won=begun.response.has_begun)

    async def _first_to_begin(self) -> Attempt:
        """Or whoever may yet, where the other has failed."""
        self.current = first = self._begin_with(self._choose(self._tried), self._meter)
        head, hedging = first.response.head, self._retries.hedging
        hedging.budget.deposit()
        after_s = hedging.after_s(self._policy, self._context.request.model)
        await news_of(self._exchange, head, within_s=after_s)
        if head.is_done:
            if first.response.has_begun:
                self._learn(first)
            return first
        of_second = Meter()  # who it is counts if the second wins
        second = self._second(first, of_second)
        if second is None:
            return first
        try:
            await news_of(self._exchange, head, second.response.head)
        except (Interrupted, asyncio.CancelledError):
            self._drop(second)
            raise
        winner, loser = self._decided(first, second)
        if winner is second:
            self._meter.take_over(of_second)
        self._drop(loser)
        self.current = winner
        return winner

    def _second(self, first: Attempt, meter: Meter) -> Attempt | None:
        """With a replica of the same make that is well; ``None``: there is none, or no budget.

        Not with a server of another owner, who bills what nobody reads.
        """
        self._is_spent = True
        request, retries = self._context.request, self._retries
        if first.replica.outside is not None:
            return None
        avoided = {*self._tried, first.replica.name, *request.providers}
        avoided |= retries.breakers.barred(request.model)
        target_ms = self._context.grant.admission.ttft_target_ms
        try:
            decision = self._fleet.choose(request, avoided, target_ms)
        except NoReplicaAvailable:
            return None
        replica = self._fleet.pool[decision.endpoint.name]
        is_alike = replica.has_reported == first.replica.has_reported
        if not is_alike or not retries.hedging.budget.withdraw():
            return None
        return self._begin_with(decision, meter)

    def _decided(self, first: Attempt, second: Attempt) -> tuple[Attempt, Attempt]:
        """Who answers, and who does not."""
        winner, loser = (first, second) if first.response.head.is_done else (second, first)
        if not winner.response.has_begun:
            winner, loser = loser, winner  # which may yet
        if winner.response.has_begun:
            self._learn(winner)
            if loser is first and not first.response.head.is_done:
                self._learn(first)
        self._is_undecided = winner is second and not second.response.has_begun
        if not self._is_undecided:
            self._count(is_won=winner is second)
        return winner, loser

    def _count(self, *, is_won: bool) -> None:
        hedging, self._is_undecided = self._retries.hedging, False
        if is_won:
            hedging.num_won += 1
        else:
            hedging.num_lost += 1

    def _learn(self, attempt: Attempt) -> None:
        """How long one that has begun, or is given up for one that has, was waited for."""
        waited_s = self._fleet.clock.monotonic_s() - attempt.began_monotonic_s
        self._retries.hedging.began(self._context.request.model, waited_s)

    def _drop(self, attempt: Attempt) -> None:
        self._note_work(attempt)
        response = attempt.response
        if not response.head.is_done or response.has_begun:
            note_end(self._retries.breakers, attempt, is_complete=False)
            response.cancel()
        else:
            self._tried.add(attempt.replica.name)
            if not self._has_done_nothing(attempt, response.head.exception()):
                self._note_given_up(attempt)
                response.cancel()
        self._fleet.end(attempt.stay)
