"""The request, step by step.  Read this first.

authenticate -> parse -> reserve -> route and relay -> settle and record -> end the answer.

No other module knows this order.  Every admitted request is settled and recorded exactly once,
whichever way it ends; its answer does not end before both are done.  One that no replica would
begin is withdrawn instead: it was not admitted after all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Set
from dataclasses import dataclass

from contracts.admission import TokenCounting
from contracts.response_cache import CachePolicy, HitCharge, KeptAnswer
from contracts.usage import Outcome
from gateway.access_log import AccessLog, Trace
from gateway.admission.quota_plan import PlanBook, QuotaPlan
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.verdict import Reservation, refused, turn_of
from gateway.api.context import InferenceRequest, RequestContext
from gateway.api.errors import error_body, error_event, error_status, retry_headers
from gateway.api.headers import rate_limit_headers, request_id_header
from gateway.api.request_body import RequestReader, check_prompt_fits, check_prompt_may_fit
from gateway.auth import Authenticator
from gateway.clock import Clock, IdMaker, event_id_of
from gateway.completion import Flow, in_task
from gateway.errors import (
    GatewayError,
    Interrupted,
    NoReplicaAvailable,
    Overloaded,
    ShuttingDown,
    SpoolUnavailable,
    UpstreamRefused,
)
from gateway.exact_counting import ExactCounting
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import Usage
from gateway.policies import Grant
from gateway.relay import Relay
from gateway.resilience.idempotency import REPLAYED, Idempotency
from gateway.resilience.retries import Retries
from gateway.resilience.shared_answer import SharedAnswer
from gateway.response_cache.cache_key import cache_digest
from gateway.response_cache.response_cache import (
    CACHE_MISS,
    CACHE_SHARED,
    ResponseCache,
    send_kept,
    usage_of,
)
from gateway.settlement import Settlement, SettlementDesk
from gateway.turnstile import Turnstile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stages:
    """What a request passes through, in order."""

    authenticator: Authenticator
    plans: PlanBook
    reader: RequestReader
    exact: ExactCounting
    limiter: RedisLimiter
    fleet: Fleet
    retries: Retries
    idempotency: Idempotency
    cache: ResponseCache
    turnstile: Turnstile
    desk: SettlementDesk
    access_log: AccessLog
    clock: Clock
    ids: IdMaker


class Pipeline:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._running: dict[Flow, Exchange] = {}
        self._all_ended: asyncio.Event | None = None  # set while somebody waits for it
        self._is_interrupted = False

    @property
    def retries(self) -> Retries:
        return self._stages.retries

    def ready_models(self) -> Set[str]:
        """Served now, by their own names."""
        endpoints = self._stages.fleet.pool.endpoints()
        return {model for endpoint in endpoints if endpoint.is_ready for model in endpoint.models}

    def start(self, exchange: Exchange) -> Flow:
        """Serves the exchange in a flow of its own."""
        if self._is_interrupted:
            _shut_down(exchange)
        flow = Flow(self.serve(exchange), self._ended)
        self._running[flow] = exchange
        flow.start()
        return flow

    def interrupt_all(self) -> None:
        """The gateway stops: running requests end now, settled and recorded; so do later ones."""
        self._is_interrupted = True
        for exchange in list(self._running.values()):
            _shut_down(exchange)

    async def stop(self, timeout_s: float) -> None:
        """Waits for what is left, then cancels it; even then each request is settled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.until_idle()
        for flow in list(self._running):
            flow.cancel()

    async def until_idle(self) -> None:
        """All requests have ended, those that nobody reads any more, too."""
        if self._running:
            self._all_ended = asyncio.Event()
            await self._all_ended.wait()

    def _ended(self, flow: Flow) -> None:
        del self._running[flow]
        if self._all_ended is not None and not self._running:
            self._all_ended.set()

    async def serve(self, exchange: Exchange) -> None:
        """Never raises, except for its own cancellation."""
        stages = self._stages
        trace, head = stages.access_log.begin(stages.ids.request_id(), exchange), exchange.head
        try:
            trace.grant = grant = stages.authenticator.authenticate(
                head.authorization, exchange.peer
            )
            if _may_be_known(exchange, grant) and await self._answer_known(exchange, trace, grant):
                return
            request, exchange.body = stages.reader.read(
                head.operation, exchange.body, grant, head.session
            )
            trace.request, grant = request, grant.for_model(request.model)
            if grant.admission.counting is TokenCounting.EXACT:
                trace.request = request = await self._counted(request, exchange, grant)
            check_prompt_fits(request, grant)
            context = self._context(trace, grant, request)
            plan = stages.plans.plan_for(grant, request.model)
            reservation = _reservation(context, plan, exchange.body)
            self._check_can_be_served(request, reservation, grant)
            verdict = await stages.limiter.reserve(reservation)
            trace.budget = verdict.budget
            if verdict.shadows:
                stages.access_log.note_shadows(plan, verdict.shadows)
            if verdict.refusal is not None:
                raise refused(verdict.refusal, reservation)  # noqa: TRY301  # as all steps do
            trace.admitted_monotonic_s = stages.clock.monotonic_s()
            settlement = Settlement(stages.desk, context, reservation, trace.meter)
            relay = Relay(
                stages.fleet, stages.retries, exchange, context, trace.meter, _head(trace)
            )
            end = await self._generate(context, relay, settlement, trace)
            trace.status = 200
            relay.send_end(end)
        except GatewayError as error:
            self._refuse(exchange, trace, error)
        except Interrupted as interruption:
            if interruption.error is not None:
                self._refuse(exchange, trace, interruption.error)
        except Exception:
            logger.exception("request failed", extra={"request_id": trace.request_id})
            self._refuse(exchange, trace, GatewayError("The gateway failed."))
        finally:
            stages.access_log.finish(trace)

    # What was asked before

    async def _answer_known(self, exchange: Exchange, trace: Trace, grant: Grant) -> bool:
        """Answers what an answer exists for, or begins one that others may read, too."""
        head, tenant = exchange.head, grant.tenant.tenant_id
        if head.idempotency_key is None:
            assert grant.tenant.cache is not None
            return await self._answer_cached(exchange, trace, grant, grant.tenant.cache)
        answer = self._stages.idempotency.find(tenant, head.idempotency_key, exchange)
        said = REPLAYED
        if answer is None:
            answer, said = (
                self._stages.idempotency.begin(tenant, head.idempotency_key, exchange),
                b"",
            )
        await self._read(answer, exchange, trace, said)
        return True

    async def _answer_cached(
        self, exchange: Exchange, trace: Trace, grant: Grant, policy: CachePolicy
    ) -> bool:
        head, cache, tenant = exchange.head, self._stages.cache, grant.tenant.tenant_id
        trace.request, body = self._stages.reader.read(
            head.operation, exchange.body, grant, head.session
        )
        digest = cache_digest(head.operation, body, policy, head.cache, grant.salt)
        if digest is None:
            return False
        answer = cache.running(tenant, digest)
        if answer is None:
            kept = await cache.find(tenant, digest, exchange)
            if kept is not None:
                await self._repeat(exchange, kept, trace, policy)
                return True
            answer = cache.running(tenant, digest)  # begun while the store was asked
        said = CACHE_SHARED
        if answer is None:
            answer, said = cache.begin(tenant, digest, policy, exchange), CACHE_MISS
        await self._read(answer, exchange, trace, said)
        return True

    async def _read(
        self, answer: SharedAnswer, exchange: Exchange, trace: Trace, headers: bytes
    ) -> None:
        """The shared answer, to its end; whoever comes first has it made."""
        is_first = answer.is_unread
        trace.is_counted_elsewhere = is_first
        ended = answer.join(exchange, headers)
        if is_first:
            self.start(answer)
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
        grant, request = trace.grant, trace.request
        assert grant is not None
        assert request is not None
        if policy.hit_charge is HitCharge.FULL:
            stages, context = self._stages, self._context(trace, grant, request)
            plan = stages.plans.plan_for(grant.for_model(request.model), request.model)
            reservation = _reservation(context, plan, exchange.body)
            verdict = await stages.limiter.reserve(reservation)
            trace.budget = verdict.budget
            if verdict.refusal is not None:
                raise refused(verdict.refusal, reservation)
            usage = usage_of(kept)
            closing = Settlement(stages.desk, context, reservation, trace.meter).close(
                usage, Outcome.COMPLETED
            )
            trace.usage, trace.outcome = closing.usage, closing.outcome
            await closing.until_kept()
        trace.status = 200
        send_kept(exchange, kept, _head(trace))

    # Admission

    async def _counted(
        self, request: InferenceRequest, exchange: Exchange, grant: Grant
    ) -> InferenceRequest:
        check_prompt_may_fit(request, grant)
        return await self._stages.exact.counted(request, exchange.body, grant, exchange.watch)

    def _check_can_be_served(
        self, request: InferenceRequest, reservation: Reservation, grant: Grant
    ) -> None:
        """Before anything is reserved: a request that cannot run should not cost a request."""
        reservation.plan.check_fits(
            tokens=reservation.reserved_tokens,
            budget_tokens=reservation.budget_tokens,
            nano_usd=reservation.reserved_nano_usd,
        )
        if self._stages.desk.spool.is_failing:
            raise SpoolUnavailable("Usage cannot be recorded now.")
        if not grant.tenant.fallbacks:
            self._stages.fleet.require_candidate(request)

    def _context(self, trace: Trace, grant: Grant, request: InferenceRequest) -> RequestContext:
        return RequestContext(
            request_id=trace.request_id,
            event_id=event_id_of(trace.request_id),
            grant=grant,
            request=request,
            admitted_at=self._stages.clock.now(),
            started_monotonic_s=trace.started_monotonic_s,
        )

    # The answer

    async def _generate(
        self, context: RequestContext, relay: Relay, settlement: Settlement, trace: Trace
    ) -> bytes:
        """The end of the answer, once its usage is settled and recorded.

        Failures are raised after that, too: the client learns nothing that is not on disk.
        """
        failure: GatewayError | Interrupted | None = None
        end = b""
        try:
            await self._take_turn(context, relay, trace)
            end = await relay.answer()
            settlement.close(relay.usage(), Outcome.COMPLETED)
        except Interrupted as interruption:
            failure = interruption
            settlement.close(await in_task(relay.stop()), interruption.outcome)
        except (NoReplicaAvailable, Overloaded) as error:
            failure = error
            settlement.withdraw()
        except GatewayError as error:
            failure = error
            usage = await in_task(relay.stop_after_failure())
            settlement.close(usage, _outcome_of(error, usage))
        finally:
            # Only a cancelled flow, or a defect, gets here unsettled.
            closing = settlement.closing or settlement.close(relay.usage(), Outcome.CANCELLED)
            trace.usage, trace.outcome = closing.usage, closing.outcome
            if isinstance(relay.exchange, SharedAnswer):
                relay.exchange.usage = closing.usage
                relay.exchange.served = trace.meter.served
            relay.close()
        if self._stages.desk.waits:
            await closing.until_kept()
        if failure is not None:
            try:
                raise failure
            finally:
                failure = None  # whose traceback leads here
        return end

    async def _take_turn(self, context: RequestContext, relay: Relay, trace: Trace) -> None:
        """Raises Overloaded where nobody else may serve it either, Interrupted."""
        try:
            turn = self._stages.turnstile.enter(context, trace.meter)
            if turn is not None:
                await self._stages.turnstile.wait(relay.exchange, turn)
        except Overloaded:
            if not await relay.fall_back():
                raise

    def _refuse(self, exchange: Exchange, trace: Trace, error: GatewayError) -> None:
        trace.reason = error.code
        if exchange.is_started:
            trace.status = 200  # the status line is gone; the log's reason tells
            exchange.end_stream(error_event(error))
            return
        trace.status = error_status(error)
        challenge = b"www-authenticate: Bearer\r\n" if trace.status == 401 else b""
        exchange.send(
            trace.status, _head(trace) + retry_headers(error) + challenge, error_body(error)
        )


def _may_be_known(exchange: Exchange, grant: Grant) -> bool:
    if exchange.is_shared:
        return False
    return exchange.head.idempotency_key is not None or grant.tenant.cache is not None


def _shut_down(exchange: Exchange) -> None:
    exchange.interrupt(Outcome.CANCELLED, ShuttingDown("The gateway is shutting down."))


def _reservation(context: RequestContext, plan: QuotaPlan, body: bytes) -> Reservation:
    """No cached token counts in its money yet: whether there are any, the replica knows."""
    request = context.request
    prompt_tokens, completion_tokens = (
        request.estimated_prompt_tokens,
        request.max_completion_tokens,
    )
    nano_usd = 0
    if plan.price is not None:
        nano_usd = plan.nano_usd(uncached=prompt_tokens, cached=0, output=completion_tokens)
    return Reservation(
        reservation_id=context.event_id,
        plan=plan,
        reserved_tokens=prompt_tokens + request.reserved_completion_tokens,
        budget_tokens=prompt_tokens + completion_tokens,
        reserved_nano_usd=nano_usd,
        turn=turn_of(plan.key_number, body),
    )


def _outcome_of(error: GatewayError, usage: Usage) -> Outcome:
    if isinstance(error, UpstreamRefused) and error.is_clients_fault and not usage.total_tokens:
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED


def _head(trace: Trace) -> bytes:
    return request_id_header(trace.request_id) + rate_limit_headers(trace.budget)
