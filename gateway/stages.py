"""What a request passes through, and what its way there is made of."""

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.access_log import AccessLog
from gateway.admission.quota_plan import PlanBook
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.verdict import Reservation, Verdict, refused
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
from gateway.trace import Trace
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

    def reservation(
        self, trace: Trace, grant: Grant, request: InferenceRequest, turn: int
    ) -> Reservation:
        """To be asked for.  ``grant``: for the request's model; ``turn``: see ``verdict.turn_of``.

        No cached token counts in its money yet: whether there are any, the replica knows.
        Raises what ``PlanBook.plan_for`` raises.
        """
        plan = self.plans.plan_for(grant, request.model)
        prompt_tokens, completion_tokens = (
            request.estimated_prompt_tokens,
            request.max_completion_tokens,
        )
        nano_usd = 0
        if plan.price is not None:
            nano_usd = plan.nano_usd(uncached=prompt_tokens, cached=0, output=completion_tokens)
        return Reservation(
            event_id_of(trace.request_id),
            plan,
            reserved_tokens=prompt_tokens + request.reserved_completion_tokens,
            budget_tokens=prompt_tokens + completion_tokens,
            reserved_nano_usd=nano_usd,
            turn=turn,
        )

    def admit(self, reservation: Reservation, verdict: Verdict, trace: Trace) -> None:
        """Raises RateLimited, InsufficientQuota."""
        trace.budget = verdict.budget
        if verdict.refusal is not None:
            raise refused(verdict.refusal, reservation)
        trace.admitted_monotonic_s = self.clock.monotonic_s()
        if verdict.is_local:
            trace.meter.is_locally_admitted = True
        if verdict.shadows:
            self.access_log.note_shadows(trace, reservation.plan, verdict.shadows)

    def context(
        self, trace: Trace, reservation: Reservation, grant: Grant, request: InferenceRequest
    ) -> RequestContext:
        """Of one that is admitted.  ``grant``: for the request's model."""
        return RequestContext(
            trace.request_id,
            reservation.reservation_id,
            grant,
            request,
            datetime.fromtimestamp(self.clock.wall_s(), UTC),
            trace.started_monotonic_s,
        )


def answer_head(trace: Trace) -> bytes:
    if trace.budget is None:
        return request_id_header(trace.request_id)
    return rate_limit_headers(trace.budget, trace.request_id)
