"""Requests for which an answer exists already, or is being made, and those who read it.

One is known by its ``Idempotency-Key``, or by all that it asks for.  Where there is none yet, one
is begun that others may read, too: it runs through the pipeline as a request of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from contracts.response_cache import CachePolicy, HitCharge, KeptAnswer
from contracts.usage import Outcome
from gateway.admission.verdict import turn_of
from gateway.api.context import RequestContext
from gateway.errors import Interrupted
from gateway.exchange import Exchange
from gateway.metering import Priced, Usage
from gateway.policies import Grant
from gateway.resilience.idempotency import REPLAYED
from gateway.resilience.shared_answer import Recording, SharedAnswer
from gateway.response_cache.cache_key import cache_digest
from gateway.response_cache.response_cache import CACHE_MISS, CACHE_SHARED, send_kept, usage_of
from gateway.settlement import Settlement
from gateway.stages import Stages, answer_head
from gateway.trace import Trace


@dataclass(frozen=True, slots=True)
class _Instead:
    """Who served the answer that a reader shares: its own request's context, with that model."""

    context: RequestContext
    plan: Priced


@dataclass(frozen=True, slots=True)
class _Charge:
    """What a reader of another's answer is to pay, once that is known."""

    trace: Trace
    context: RequestContext
    settlement: Settlement

    def settle(self, parent: str | None, usage: Usage | None, outcome: Outcome | None) -> None:
        """``parent``: whose event is the answer's.  No usage: the answer has cost nothing."""
        if usage is None or outcome is None:
            self.settlement.withdraw()
            return
        self.trace.meter.parent_event_id = parent
        self.trace.meter.charged_tokens = usage.total_tokens  # no turn: it has run nowhere
        closing = self.settlement.close(usage, outcome)
        self.trace.usage, self.trace.outcome = closing.usage, closing.outcome

    def settle_as(self, answer: SharedAnswer) -> None:
        served = answer.served
        if served is not None:
            context = msgspec.structs.replace(self.context, request=served.context.request)
            self.trace.meter.served = _Instead(context, served.plan)
        self.trace.meter.adapter_of = answer.adapter_of
        self.settle(answer.event_id, answer.usage, answer.outcome)

    async def until_kept(self) -> None:
        if self.settlement.closing is not None:
            await self.settlement.closing.until_kept()


class KnownAnswers:
    def __init__(self, stages: Stages, start: Callable[[Exchange], object]) -> None:
        """``start``: has a request made."""
        self._stages = stages
        self._start = start

    async def answer(self, exchange: Exchange, trace: Trace, grant: Grant) -> bool:
        """Of a request that names a key, or whose tenant has a cache.

        False: it is a request like any other.
        """
        if exchange.is_shared:
            return False
        key, policy = exchange.head.idempotency_key, grant.tenant.cache
        if key is not None:
            await self._answer_again(key, exchange, trace, grant)
            return True
        assert policy is not None
        request = self._stages.read(exchange, grant)
        trace.request, head = request, exchange.head
        base = self._stages.fleet.pool.parent(request.model)
        digest = cache_digest(head.operation, exchange.body, base, policy, head.cache, grant.salt)
        if digest is None:
            return False
        await self._answer_cached(digest, exchange, trace, policy)
        return True

    async def _answer_again(
        self, key: bytes, exchange: Exchange, trace: Trace, grant: Grant
    ) -> None:
        owner = grant.tenant.tenant_id, grant.key.key_id
        answer = await self._stages.idempotency.answer(owner, key, exchange)
        if isinstance(answer, Recording):
            trace.status = answer.status
            answer.send_to(exchange, answer.headers + REPLAYED)
            return
        await self._read(answer, exchange, trace, b"" if answer.is_unread else REPLAYED)

    async def _answer_cached(
        self, digest: str, exchange: Exchange, trace: Trace, policy: CachePolicy
    ) -> None:
        assert trace.grant is not None
        cache, tenant = self._stages.cache, trace.grant.tenant.tenant_id
        if cache.running(tenant, digest) is None:
            kept = await cache.find(tenant, digest, exchange)
            if kept is not None:
                await self._repeat(exchange, kept, trace, policy)
                return
        charge = None  # asked for first: what runs then may have ended behind it
        if cache.running(tenant, digest) is not None and policy.hit_charge is HitCharge.FULL:
            charge = await self._charge(exchange, trace)
        answer = cache.running(tenant, digest)
        if answer is None:
            if charge is not None:
                charge.settle(None, None, None)
            answer = cache.begin(tenant, digest, policy, exchange)
            await self._read(answer, exchange, trace, CACHE_MISS)
            return
        cache.num_shared += 1
        if charge is not None:
            answer.when_settled(partial(charge.settle_as, answer))
        await self._read(answer, exchange, trace, CACHE_SHARED)
        if charge is not None:
            await charge.until_kept()

    async def _read(
        self, answer: SharedAnswer, exchange: Exchange, trace: Trace, headers: bytes
    ) -> None:
        """The shared answer, to its end; whoever comes first has it made."""
        is_first = answer.is_unread
        trace.is_counted_elsewhere = is_first
        ended = answer.join(exchange, headers)
        if is_first:
            answer.came_monotonic_s = trace.started_monotonic_s
            self._start(answer)
        try:
            await exchange.watch(ended)
        except Interrupted:
            answer.leave(exchange)
            raise
        trace.status = answer.status

    async def _repeat(
        self, exchange: Exchange, kept: KeptAnswer, trace: Trace, policy: CachePolicy
    ) -> None:
        """A kept answer, charged as policy says.  Raises what a limit says to that."""
        if policy.hit_charge is HitCharge.FULL:
            charge = await self._charge(exchange, trace)
            charge.settle(kept.event_id, usage_of(kept), Outcome.RESPONSE_CACHE_HIT)
            await charge.until_kept()
        trace.status = 200
        send_kept(exchange, kept, answer_head(trace))

    async def _charge(self, exchange: Exchange, trace: Trace) -> _Charge:
        """Raises what a limit says."""
        stages, request = self._stages, trace.request
        assert trace.grant is not None
        assert request is not None
        grant = trace.grant.for_model(request.model)
        turn = turn_of(grant.key_number, exchange.body)
        reservation = stages.reservation(trace, grant, request, turn)
        verdict = await stages.limiter.reserve(reservation)
        stages.admit(reservation, verdict, trace)
        context = stages.context(trace, reservation, grant, request)
        trace.meter.adapter_of = stages.fleet.pool.parent(request.model)  # no replica is to tell
        return _Charge(trace, context, Settlement(stages.desk, context, reservation, trace.meter))
