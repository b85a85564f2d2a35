"""The request, step by step.  Read this first.

authenticate -> parse -> reserve -> route and relay -> settle and record -> end the answer.

No other module knows this order.  Every admitted request is settled and recorded exactly once,
whichever way it ends; its answer does not end before both are done.  One that no replica has
begun is withdrawn instead: it was not admitted after all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Set

from contracts.admission import TokenCounting
from contracts.usage import Outcome
from gateway.admission.verdict import Reservation, turn_of
from gateway.api.context import InferenceRequest, RequestContext
from gateway.api.errors import error_body, error_event, error_headers, error_status
from gateway.api.request_body import check_prompt_may_fit, prompt_too_long
from gateway.clock import event_id_of
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
from gateway.exchange import Exchange
from gateway.known_answers import KnownAnswers
from gateway.metering import Meter, Usage
from gateway.policies import Grant
from gateway.relay import Relay
from gateway.resilience.retries import Retries
from gateway.resilience.shared_answer import SharedAnswer
from gateway.settlement import Settlement
from gateway.stages import Stages, answer_head
from gateway.trace import Trace

logger = logging.getLogger(__name__)


class Pipeline:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._known = KnownAnswers(stages, self.start)
        self._running: dict[Flow, Exchange] = {}
        self._all_ended: asyncio.Event | None = None  # set while somebody waits for it
        self._is_interrupted = False

    @property
    def retries(self) -> Retries:
        return self._stages.retries

    def ready_models(self) -> Set[str]:
        """Served now, by their own names."""
        return self._stages.fleet.pool.ready_models

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
        trace = stages.access_log.begin(stages.ids.request_id(), exchange)
        try:
            trace.grant = grant = stages.authenticator.authenticate(
                exchange.head.authorization, exchange.peer
            )
            trace.authenticated_monotonic_s = stages.clock.monotonic_s()
            may_be_known = (
                exchange.head.idempotency_key is not None or grant.tenant.cache is not None
            )
            if may_be_known and await self._known.answer(exchange, trace, grant):
                return
            turn = turn_of(grant.key_number, exchange.body)
            if grant.admission.ttft_target_ms is not None:
                stages.turnstile.check(grant, exchange.body, turn)  # a flood must cost little
            trace.request = request = stages.read(exchange, grant)
            if grant.by_model:
                grant = grant.for_model(request.model)
            if grant.admission.counting is TokenCounting.EXACT:
                trace.request = request = await self._counted(request, exchange, grant, trace)
            reservation = stages.reservation(trace, grant, request, turn)
            self._check_can_be_served(request, reservation, grant)
            verdict = await stages.limiter.reserve(reservation)
            stages.admit(reservation, verdict, trace)
            context = stages.context(trace, reservation, grant, request)
            settlement = Settlement(stages.desk, context, reservation, trace.meter)
            relay = Relay(
                stages.fleet, stages.retries, exchange, context, trace.meter, answer_head(trace)
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
            if isinstance(exchange, SharedAnswer):
                exchange.settle(event_id_of(trace.request_id))  # unless it is

    # Admission

    async def _counted(
        self, request: InferenceRequest, exchange: Exchange, grant: Grant, trace: Trace
    ) -> InferenceRequest:
        check_prompt_may_fit(request, grant)
        stages = self._stages
        began_s = stages.clock.monotonic_s()
        counted = await stages.exact.counted(request, exchange.body, grant, exchange.watch)
        trace.counted_s = stages.clock.monotonic_s() - began_s
        return counted

    def _check_can_be_served(
        self, request: InferenceRequest, reservation: Reservation, grant: Grant
    ) -> None:
        """Before anything is reserved: a request that cannot run should not cost a request."""
        if request.estimated_prompt_tokens > grant.admission.max_prompt_tokens:
            raise prompt_too_long(request, grant)
        plan, spool = reservation.plan, self._stages.desk.spool
        if plan.has_budget or reservation.reserved_tokens > plan.most_tokens:
            plan.check_fits(
                tokens=reservation.reserved_tokens,
                budget_tokens=reservation.budget_tokens,
                nano_usd=reservation.reserved_nano_usd,
                prompt_tokens=request.estimated_prompt_tokens,
                num_choices=request.num_choices,
            )
        if spool.is_behind or spool.is_held_back:
            raise SpoolUnavailable("Usage cannot be recorded now.")
        fleet = self._stages.fleet
        if request.model not in fleet.pool.ready_models and not grant.tenant.fallbacks:
            fleet.require_candidate(request)

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
            if context.grant.admission.ttft_target_ms is not None:
                await self._take_turn(context, relay, trace.meter, settlement.turn)
            end = await relay.answer()
            settlement.close(relay.usage(), Outcome.COMPLETED)
        except Interrupted as interruption:
            failure = interruption
            settlement.close(await in_task(relay.stop()), interruption.outcome)
        except (NoReplicaAvailable, Overloaded) as error:
            failure = error
            if relay.has_left_work:  # which an auditor would bill, were there no event
                settlement.close(relay.usage(), Outcome.UPSTREAM_FAILED)
            else:
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
                served, adapter_of = trace.meter.served, trace.meter.adapter_of
                relay.exchange.settle(
                    context.event_id, closing.usage, closing.outcome, served, adapter_of
                )
            relay.close()
        if self._stages.desk.waits:
            await closing.until_kept()
        if failure is not None:
            try:
                raise failure
            finally:
                failure = None  # whose traceback leads here
        return end

    async def _take_turn(
        self, context: RequestContext, relay: Relay, meter: Meter, turn: int
    ) -> None:
        """Raises Overloaded where nobody else may serve it either, Interrupted."""
        try:
            waiting = self._stages.turnstile.enter(context, meter, turn)
            if waiting is not None:
                await self._stages.turnstile.wait(relay.exchange, waiting)
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
        exchange.send(trace.status, answer_head(trace) + error_headers(error), error_body(error))


def _shut_down(exchange: Exchange) -> None:
    exchange.interrupt(Outcome.CANCELLED, ShuttingDown("The gateway is shutting down."))


def _outcome_of(error: GatewayError, usage: Usage) -> Outcome:
    if isinstance(error, UpstreamRefused) and error.is_clients_fault and not usage.total_tokens:
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED
