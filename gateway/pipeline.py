"""The request, step by step.  Read this first.

authenticate -> parse -> reserve -> route and relay -> settle and record -> end the answer.

No other module knows this order.  Every admitted request is settled and recorded exactly once,
whichever way it ends; its answer does not end before both are done.  One that no replica would
begin is withdrawn instead: it was not admitted after all.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from contracts.usage import Outcome
from gateway.access_log import AccessLog, Trace
from gateway.admission.limiter import Budget, Refusal, Reservation
from gateway.admission.redis_limiter import RedisLimiter
from gateway.api.context import InferenceRequest, RequestContext
from gateway.api.errors import error_body, error_event, error_status, retry_headers
from gateway.api.headers import rate_limit_headers, request_id_header
from gateway.api.request_body import parse_request
from gateway.auth import Authenticator
from gateway.clock import Clock, IdMaker
from gateway.completion import Flow, in_task
from gateway.errors import (
    GatewayError,
    Interrupted,
    InvalidRequest,
    NoReplicaAvailable,
    RateLimited,
    ShuttingDown,
    SpoolUnavailable,
    UpstreamRefused,
)
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import Usage
from gateway.policies import Grant
from gateway.relay import Relay
from gateway.settlement import Settlement, SettlementDesk

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stages:
    """What a request passes through, in order."""

    authenticator: Authenticator
    limiter: RedisLimiter
    fleet: Fleet
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
        if self._running:
            self._all_ended = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_ended.wait()
        for flow in list(self._running):
            flow.cancel()

    def _ended(self, flow: Flow) -> None:
        del self._running[flow]
        if self._all_ended is not None and not self._running:
            self._all_ended.set()

    async def serve(self, exchange: Exchange) -> None:
        """Never raises, except for its own cancellation."""
        trace = self._stages.access_log.begin(self._stages.ids.request_id(), exchange.operation)
        try:
            await self._serve(exchange, trace)
        except GatewayError as error:
            self._refuse(exchange, trace, error)
        except Interrupted as interruption:
            if interruption.error is not None:
                self._refuse(exchange, trace, interruption.error)
        except Exception:
            logger.exception("request failed", extra={"request_id": trace.request_id})
            self._refuse(exchange, trace, GatewayError("The gateway failed."))
        finally:
            self._stages.access_log.finish(trace)

    async def _serve(self, exchange: Exchange, trace: Trace) -> None:
        stages = self._stages
        trace.grant = grant = stages.authenticator.authenticate(exchange.header(b"authorization"))
        request, exchange.body = parse_request(
            exchange.operation, exchange.body, grant, stages.fleet.pool.resolve
        )
        trace.request = request
        self._check_can_be_served(request, grant)
        context = self._context(trace, grant, request)
        reservation = await self._admit(trace, context)
        settlement = Settlement(stages.desk, context, reservation, trace.meter)
        relay = Relay(stages.fleet, exchange, context, trace.meter, _head(trace))
        end = await self._generate(relay, settlement, trace)
        trace.status = 200
        relay.send_end(end)

    # Admission

    def _check_can_be_served(self, request: InferenceRequest, grant: Grant) -> None:
        """Before anything is reserved: a request that cannot run should not cost a request."""
        limit = grant.limits.tokens_per_minute
        if request.estimated_tokens > limit:  # waiting would never help, so it is not a 429
            raise InvalidRequest(
                f"The request may need {request.estimated_tokens} tokens, "
                f"more than the limit of {limit} tokens per minute ever allows.",
                code="tokens_limit_exceeded",
            )
        if self._stages.desk.spool.is_failing:
            raise SpoolUnavailable("Usage cannot be recorded now.")
        self._stages.fleet.require_candidate(request)

    def _context(self, trace: Trace, grant: Grant, request: InferenceRequest) -> RequestContext:
        return RequestContext(
            request_id=trace.request_id,
            event_id=self._stages.ids.uuid7(),
            grant=grant,
            request=request,
            admitted_at=self._stages.clock.now(),
            started_monotonic_s=trace.started_monotonic_s,
        )

    async def _admit(self, trace: Trace, context: RequestContext) -> Reservation:
        """Raises RateLimited, QuotaUnavailable."""
        reservation = Reservation(
            reservation_id=context.event_id,
            tenant_id=context.grant.tenant.tenant_id,
            limits=context.grant.limits,
            reserved_tokens=context.request.estimated_tokens,
        )
        verdict = await self._stages.limiter.reserve(reservation)
        trace.budget = verdict.budget
        if verdict.refusal is not None:
            raise _rate_limited(verdict.budget, verdict.refusal, reservation)
        return reservation

    # The answer

    async def _generate(self, relay: Relay, settlement: Settlement, trace: Trace) -> bytes:
        """The end of the answer, once its usage is settled and recorded.

        Failures are raised after that, too: the client learns nothing that is not on disk.
        """
        failure: GatewayError | Interrupted | None = None
        end = b""
        try:
            end = await relay.answer()
            settlement.close(relay.usage(), Outcome.COMPLETED)
        except Interrupted as interruption:
            failure = interruption
            settlement.close(await in_task(relay.stop()), interruption.outcome)
        except NoReplicaAvailable as error:
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
            relay.close()
        await self._stages.desk.hold(closing)
        if failure is not None:
            raise failure
        return end

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


def _shut_down(exchange: Exchange) -> None:
    exchange.interrupt(Outcome.CANCELLED, ShuttingDown("The gateway is shutting down."))


def _rate_limited(budget: Budget, refusal: Refusal, reservation: Reservation) -> RateLimited:
    is_tokens = refusal.limit == "tokens"
    return RateLimited(
        refusal.limit,
        allowed=budget.tokens_limit if is_tokens else budget.requests_limit,
        remaining=budget.tokens_remaining if is_tokens else budget.requests_remaining,
        needed=reservation.reserved_tokens if is_tokens else 1,
        retry_after_ms=refusal.retry_after_ms,
    )


def _outcome_of(error: GatewayError, usage: Usage) -> Outcome:
    if isinstance(error, UpstreamRefused) and error.is_clients_fault and not usage.total_tokens:
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED


def _head(trace: Trace) -> bytes:
    return request_id_header(trace.request_id) + rate_limit_headers(trace.budget)
