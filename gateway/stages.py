"""What a request passes through, and what its way there is made of."""

from dataclasses import dataclass

from gateway.access_log import AccessLog, Trace
from gateway.admission.quota_plan import PlanBook, QuotaPlan
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.verdict import Reservation, refused, turn_of
from gateway.api.context import InferenceRequest, RequestContext
from gateway.api.headers import rate_limit_headers, request_id_header
from gateway.api.request_body import RequestReader
from gateway.auth import Authenticator
from gateway.clock import Clock, IdMaker, event_id_of
from gateway.exact_counting import ExactCounting
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.policies import Grant
from gateway.resilience.idempotency import Idempotency
from gateway.resilience.retries import Retries
from gateway.response_cache.response_cache import ResponseCache
from gateway.settlement import SettlementDesk
from gateway.turnstile import Turnstile


@dataclass(frozen=True, slots=True)
class Stages:
    """In order."""

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

    def read(self, exchange: Exchange, grant: Grant) -> InferenceRequest:
        """Once; the exchange then has the body that the replica gets.

        Raises InvalidRequest, NotAllowed, ModelNotFound, NoReplicaAvailable.
        """
        request = exchange.request
        if request is None:
            head = exchange.head
            request, exchange.body = self.reader.read(
                head.operation, exchange.body, grant, head.session
            )
            exchange.request = request
        return request

    async def admit(self, reservation: Reservation, trace: Trace) -> None:
        """Raises RateLimited, QuotaUnavailable and what else a limit says."""
        verdict = await self.limiter.reserve(reservation)
        trace.budget = verdict.budget
        if verdict.refusal is not None:
            raise refused(verdict.refusal, reservation)
        if verdict.shadows:
            self.access_log.note_shadows(trace, reservation.plan, verdict.shadows)

    def context(self, trace: Trace, grant: Grant, request: InferenceRequest) -> RequestContext:
        """``grant``: for the request's model."""
        return RequestContext(
            request_id=trace.request_id,
            event_id=event_id_of(trace.request_id),
            grant=grant,
            request=request,
            admitted_at=self.clock.now(),
            started_monotonic_s=trace.started_monotonic_s,
        )


def reservation_of(context: RequestContext, plan: QuotaPlan, body: bytes) -> Reservation:
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


def answer_head(trace: Trace) -> bytes:
    return request_id_header(trace.request_id) + rate_limit_headers(trace.budget)
