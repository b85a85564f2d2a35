"""One request's attempts: which replica gets it, in which words, and who gets it next.

Before the client has a byte, a replica that did not begin leaves the request to the next.  After
it, see ``resilience.resumption``.
"""

from collections.abc import Collection, Coroutine
from functools import cached_property
from typing import Any, Final

from contracts.names import (
    HEADER_EVENT_ID,
    HEADER_EXPLAIN,
    HEADER_LOCALLY_ADMITTED,
    HEADER_REQUEST_ID,
    HEADER_TENANT_ID,
)
from gateway.api.context import RequestContext
from gateway.api.headers import route_costs, route_header
from gateway.errors import (
    CredentialRefused,
    GatewayError,
    Interrupted,
    NoReplicaAvailable,
    UpstreamError,
    UpstreamUnreachable,
)
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import Meter
from gateway.providers.anthropic_answer import AnthropicAnswer
from gateway.providers.provider import Provider
from gateway.resilience.attempt import Attempt
from gateway.resilience.breaker_notes import (
    note_credential_refused,
    note_end,
    note_failure,
    note_head,
    note_unreachable,
)
from gateway.resilience.failures import (
    BETWEEN_US,
    is_replicas_end,
    is_replicas_failure,
    may_retry,
)
from gateway.resilience.fallback import Target
from gateway.resilience.outside_attempt import begin_at, member_body
from gateway.resilience.pause import pause
from gateway.resilience.resumable_answer import ResumableAnswer
from gateway.resilience.retries import Retries
from gateway.resilience.waits import Waits
from gateway.routing.decision import Decision
from gateway.upstream.response import UpstreamResponse

MAX_ERROR_BYTES: Final = 64 * 1024
_REQUEST_HEADERS: Final = (  # with the ids of request, event and tenant, and what the client sent
    f"{HEADER_REQUEST_ID}: %b\r\n{HEADER_EVENT_ID}: %b\r\n{HEADER_TENANT_ID}: %b\r\n"
    "content-type: application/json\r\n%b"
).encode()
_LOCALLY_ADMITTED: Final = f"{HEADER_LOCALLY_ADMITTED}: 1\r\n".encode()
_EXPLAIN: Final = HEADER_EXPLAIN.encode()
_AT_ONCE_S = 5.0  # a replica that takes no work says so first; a later 503 may follow some

Opening = Coroutine[Any, Any, UpstreamResponse]


class Attempts:
    current: Attempt | None = None
    has_left_work = False  # with a replica that was given up, and may have begun it
    answer: ResumableAnswer | None = None  # None: the current attempt's cannot be resumed
    _provider: Provider | None = None  # None: our own replicas
    _num_begun = 0
    _num_begun_before = 0  # by those whose turn is over

    def __init__(
        self,
        fleet: Fleet,
        retries: Retries,
        exchange: Exchange,
        context: RequestContext,
        meter: Meter,
    ) -> None:
        self._fleet = fleet
        self._retries = retries
        self._exchange = exchange
        self._context = context
        self._meter = meter
        self._tried: set[str] = set()

    @cached_property
    def _waits(self) -> Waits:
        """Of the few requests that have any."""
        monotonic_s = self._fleet.clock.monotonic_s
        return Waits(self._retries, monotonic_s, self._context.started_monotonic_s)

    @property
    def translation(self) -> AnthropicAnswer | None:
        return None if self.current is None else self.current.translation

    def turn_to(self, target: Target) -> None:
        """From here on the request is that one."""
        if self.current is not None:
            self.give_up()
        self._context, self._provider = target.context, target.provider
        self._exchange.body = target.body
        self._num_begun_before = self._num_begun
        self._tried.clear()
        self.answer = None
        self._waits.forget_asked()
        self._meter.turn()

    def note_failure(self, failure: GatewayError) -> None:
        """Which the answer's head did not tell."""
        attempt = self.current
        if attempt is None:
            return
        if self._exchange.is_started and is_replicas_end(failure):
            self._meter.is_broken_off = True
        if isinstance(failure, CredentialRefused):
            note_credential_refused(self._retries.breakers, attempt)
        elif attempt.response.status == 200 and is_replicas_end(failure):
            note_failure(self._retries.breakers, attempt)

    async def before_retry(self, failure: GatewayError) -> None:
        """For an attempt of which the client has nothing.  Raises ``failure``: it was the last."""
        pause_s = self._pause_s(failure)
        if pause_s is None:
            raise failure
        if self.current is not None:
            self.give_up()
        self._meter.engine_usage = None
        await self._exchange.watch(pause(pause_s))

    def break_off(self) -> str:
        """A stream of which the client has a part ends here.  Its replica's name."""
        assert self.current is not None
        self._meter.break_off(self._fleet.clock.monotonic_s())
        note_failure(self._retries.breakers, self.current)
        return self.give_up()

    def _begin_at(self, provider: Provider, tried: set[str]) -> Attempt:
        """As the policy's step has it.  Raises NoReplicaAvailable."""
        model = self._context.request.model
        if provider.name in tried or provider.name in self._retries.breakers.barred(model):
            error = NoReplicaAvailable("The provider cannot take this request now.")
            self._waits.tell(error, model, (), {provider.name})
            raise error
        return self._begin_outside(provider, self._exchange.body, self._meter)

    def _begin_outside(self, provider: Provider, body: bytes, meter: Meter) -> Attempt:
        request_id = f"{self._context.request_id}-{self._num_begun}"
        self._num_begun += 1
        breakers = self._retries.breakers
        attempt = begin_at(provider, self._fleet, breakers, self._context, request_id, body)
        meter.replica, meter.provider, meter.attempt = provider.name, provider.name, self._num_begun
        meter.sent_monotonic_s = attempt.began_monotonic_s
        meter.adapter_of = None
        return attempt

    def _begin_with(self, decision: Decision, meter: Meter) -> Attempt:
        """Sends the request to the replica that was decided for, and tells ``meter`` of it."""
        fleet, context = self._fleet, self._context
        meter.route, meter.home = decision.reason, decision.home
        if fleet.limits.explains_routes and self._exchange.header(_EXPLAIN) is not None:
            meter.route_costs = route_costs(decision)
            meter.explanation = route_header(decision, meter.route_costs)
        if not decision.endpoint.keeps_prefixes:
            self.answer = None
            provider = self._retries.fallbacks.providers[decision.endpoint.name]
            body = member_body(provider, context.request, self._exchange.body)
            return self._begin_outside(provider, body, meter)
        replica = fleet.pool[decision.endpoint.name]
        request_id = f"{context.request_id}-{self._num_begun}"
        self._num_begun += 1
        request, breakers = context.request, self._retries.breakers
        began_s = fleet.clock.monotonic_s()
        body, forwarded = self._exchange.body, self._exchange.forwarded
        if self._meter.is_locally_admitted:
            forwarded += _LOCALLY_ADMITTED
        if replica.has_reported and request.is_stream:
            body = self._resumable(body)
        else:
            self.answer = None
        response = replica.client.post(
            request.operation.path_bytes, _headers(context, request_id, forwarded), body
        )
        probe = breakers.begin(request.model, replica.name) if breakers.failing else None
        stay = fleet.begin(replica, request, began_s, decision.cached_tokens, request_id)
        if replica.prompt_tokens is not None and request.text is not None:
            replica.prompt_tokens.ask(request.text, self._exchange.body)
        meter.replica, meter.provider, meter.attempt = replica.name, None, self._num_begun
        meter.adapter_of = replica.parents.get(request.model)
        meter.sent_monotonic_s = began_s
        return Attempt(
            model=request.model,
            replica=replica,
            request_id=request_id,
            response=response,
            began_monotonic_s=began_s,
            stay=stay,
            probe=probe,
        )

    def close(self, *, is_complete: bool) -> None:
        """Nothing more is wanted of the current one, which may have ended well; idempotent."""
        attempt, self.current = self.current, None
        self._exchange.body = b""
        if attempt is not None:
            if self._retries.breakers.failing:
                note_end(self._retries.breakers, attempt, is_complete=is_complete)
            attempt.stay.has_begun |= is_complete  # a document begins with its end
            self._fleet.end(attempt.stay, self._meter.engine_usage)
            if not is_complete:
                attempt.response.cancel()
            elif not attempt.response.is_ended:
                attempt.response.discard()

    def open(self) -> Opening:
        """The first answer with a head, from whichever replica gives one.

        Raises UpstreamError, NoReplicaAvailable, Interrupted.
        """
        return self._open(self._tried)

    def reopen(self, tried: set[str]) -> Opening:
        """As ``open``, for a stream that broke off: who has been tried is the caller's to know."""
        return self._open(tried)

    async def _open(self, tried: set[str], begun: Attempt | None = None) -> UpstreamResponse:
        """``begun``: before others."""
        exchange = self._exchange
        while True:
            if exchange.interruption is not None:  # nothing is sent for a client that left
                raise Interrupted(*exchange.interruption)
            if begun is not None:
                attempt, begun = begun, None
            elif self._provider is None:
                attempt = self._begin_with(self._choose(tried), self._meter)
            else:
                attempt = self._begin_at(self._provider, tried)
            self.current = attempt
            response = attempt.response
            try:
                exchange.watched = response.head
                await response.head
            except UpstreamError as failure:
                if not self._has_done_nothing(attempt, failure):
                    raise
            else:
                if response.status == 200 and not self._retries.breakers.failing:
                    return response
                if not self._has_done_nothing(attempt):
                    return response
            tried.add(self.leave())

    def give_up(self) -> str:
        """The current one, whatever it does.  Its replica's name."""
        assert self.current is not None
        response = self.current.response
        response.cancel()
        self._note_given_up(self.current)
        return self.leave()

    def leave(self) -> str:
        """The current one, which is over.  Its replica's name."""
        attempt = self.current
        assert attempt is not None
        self._note_work(attempt)
        self._fleet.end(attempt.stay)
        self.current = None
        if not self._meter.num_breaks:  # else it has served a part
            self._meter.replica = None
        return attempt.replica.name

    def _pause_s(self, failure: GatewayError) -> float | None:
        """Before the next attempt, with one that is not among the tried; ``None``: no more."""
        attempt = self.current
        if attempt is None and self._provider is not None:
            return None  # the step is over: whoever is next in the chain may be ready
        if attempt is None:  # all have turned it away
            is_begun = self._num_begun > self._num_begun_before and not self._meter.num_breaks
            self._tried.clear()
            return self._waits.before_all_s() if is_begun else None
        if self._meter.num_breaks or not may_retry(failure, attempt.response):
            return None
        name = attempt.replica.name
        is_elsewhere = self._has_other({*self._tried, name})
        is_final = not attempt.response.is_refusal or isinstance(failure, CredentialRefused)
        if is_final and not is_elsewhere:
            return None  # it may still be at work, or have died of it
        if is_elsewhere:
            self._tried.add(name)
        else:
            self._tried.clear()
        return self._waits.before_next_s(attempt.response.retry_after_s, is_elsewhere=is_elsewhere)

    def _has_other(self, tried: Collection[str]) -> bool:
        if self._provider is not None:
            return False
        return self._fleet.has_candidate(self._context.request, tried)

    def _note_work(self, attempt: Attempt) -> None:
        if attempt.response.is_sent and not attempt.response.is_refusal:
            self.has_left_work = True

    def _has_done_nothing(self, attempt: Attempt, failure: BaseException | None = None) -> bool:
        """And another may be asked at once.  Notes what an attempt's head, which is done, tells."""
        response, breakers = attempt.response, self._retries.breakers
        if failure is None:
            if response.status != 200 or breakers.failing:
                note_head(breakers, attempt)
            if not self._is_turned_away(attempt):
                return False
            if response.retry_after_s is not None and not attempt.is_foreign:
                self._waits.note_asked(response.retry_after_s * 1000)
            response.discard()
            return True
        if not isinstance(failure, UpstreamUnreachable):
            note_failure(breakers, attempt)
            return False
        note_unreachable(breakers, attempt)
        self._fleet.pool.mark_unreachable(attempt.replica.name)
        response.cancel()
        return True

    def _note_given_up(self, attempt: Attempt) -> None:
        response = attempt.response
        if not response.is_refusal or is_replicas_failure(response.status):
            self._fleet.pool.note(attempt.replica.name, is_failure=True)

    def _choose(self, tried: set[str]) -> Decision:
        request = self._context.request
        barred = frozenset[str]() if self._num_begun else self._meter.waited_for
        if self._retries.breakers.failing:
            barred |= self._retries.breakers.barred(request.model)
        target_ms = self._context.grant.admission.ttft_target_ms
        while True:
            try:
                avoided = {*tried, *barred} if barred else tried
                decision = self._fleet.choose(request, avoided, target_ms)
            except NoReplicaAvailable as error:
                away = barred & self._retries.breakers.told(request.model)
                if barred == away:
                    self._waits.tell(error, request.model, tried, away)
                    raise
                barred = away  # rather one that fails than none
            else:
                if not self._meter.num_breaks or self._can_resume(decision):
                    return decision
                tried.add(decision.endpoint.name)

    def _can_resume(self, decision: Decision) -> bool:
        """One of another make cannot."""
        return self._fleet.pool[decision.endpoint.name].has_reported

    def _resumable(self, body: bytes) -> bytes:
        """As one of our own replicas gets it, if it can go on with the stream."""
        request = self._context.request
        if not request.is_resumable:
            self.answer = None
            return body
        if self.answer is None:
            self.answer = ResumableAnswer(self._context.request_id, has_seed=request.has_seed)
        return self.answer.body(body)

    def _is_turned_away(self, attempt: Attempt) -> bool:
        """With its 503: the replica is draining or full, and has done nothing."""
        status = attempt.response.status
        if attempt.is_foreign and self._provider is None:
            return status in BETWEEN_US
        now_s = self._fleet.clock.monotonic_s()
        return status == 503 and now_s - attempt.began_monotonic_s < _AT_ONCE_S


def _headers(context: RequestContext, request_id: str, forwarded: bytes) -> bytes:
    return _REQUEST_HEADERS % (
        request_id.encode(),
        context.event_id.encode(),
        context.grant.tenant.tenant_id.encode(),
        forwarded,
    )
