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
from gateway.resilience.hedging import news_of
from gateway.resilience.retries import Retries
from gateway.upstream.response import UpstreamResponse


class HedgedAttempts(Attempts):
    """Of a stream.  Two are under way once, before its first byte."""

    _is_spent = False

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

    async def open(
        self, tried: set[str] | None = None, begun: Attempt | None = None
    ) -> UpstreamResponse:
        """``tried``: a stream that broke off is taken up by one after another."""
        if tried is None and self._provider is None and not self._is_spent:
            if self._exchange.interruption is not None:  # nothing is sent for a client that left
                raise Interrupted(*self._exchange.interruption)
            begun = await self._first_to_begin()
        return await super().open(tried, begun)

    async def _first_to_begin(self) -> Attempt:
        """Or whoever may yet, where the other has failed."""
        first, hedging = self._begin_with(self._choose(self._tried)), self._retries.hedging
        head = first.response.head
        after_s = hedging.after_s(self._policy, self._context.request.model)
        await news_of(self._exchange, head, within_s=after_s)
        if head.is_done:
            if first.response.has_begun:
                self._learn(first)
            return first
        meter, self._meter = self._meter, Meter()  # who it is counts if the second wins
        try:
            second = self._second(first)
        finally:
            of_second, self._meter = self._meter, meter
            self.current = first
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

    def _second(self, first: Attempt) -> Attempt | None:
        """With a replica of the same make that is well; ``None``: there is none, or no budget."""
        self._is_spent = True
        request, retries = self._context.request, self._retries
        avoided = {*self._tried, first.replica.name, *retries.breakers.barred(request.model)}
        target_ms = self._context.grant.admission.ttft_target_ms
        try:
            decision = self._fleet.choose(request, avoided, target_ms)
        except NoReplicaAvailable:
            return None
        replica = self._fleet.pool[decision.endpoint.name]
        is_alike = replica.has_reported == first.replica.has_reported
        return self._begin_with(decision) if is_alike and retries.budget.withdraw() else None

    def _decided(self, first: Attempt, second: Attempt) -> tuple[Attempt, Attempt]:
        """Who answers, and who does not."""
        hedging = self._retries.hedging
        winner, loser = (first, second) if first.response.head.is_done else (second, first)
        if not winner.response.has_begun:
            winner, loser = loser, winner  # which may yet
        self._learn(first)
        if winner is first:
            hedging.num_lost += 1
        else:
            hedging.num_won += 1
            if second.response.has_begun:
                self._learn(second)
        return winner, loser

    def _learn(self, attempt: Attempt) -> None:
        """How long it has been waited for."""
        waited_s = self._fleet.clock.monotonic_s() - attempt.began_monotonic_s
        self._retries.hedging.began(self._context.request.model, waited_s)

    def _drop(self, attempt: Attempt) -> None:
        self._note_work(attempt)
        response = attempt.response
        if not response.head.is_done or response.has_begun:
            self._note_end(attempt, is_complete=False)
        else:
            self._tried.add(attempt.replica.name)
            if response.is_refusal:
                self._note_status(attempt)
            else:
                self._note_failure(attempt)
        response.cancel()
        self._fleet.end(attempt.stay)
