"""The replicas as one request sees them: which may take it, which takes it next, and when."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from contracts.usage import Outcome
from gateway.api.context import InferenceRequest
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.metering import Usage
from gateway.prompt import Prompt
from gateway.routing.decision import Decision, Reason
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.outside import Outside
from gateway.routing.pool import ReplicaPool
from gateway.routing.prefix_memory import PrefixMemory, Promise
from gateway.routing.replica import Replica
from gateway.routing.router import Router
from gateway.routing.stay import Stay
from gateway.routing.ttft_forecast import Forecast


@dataclass(frozen=True, slots=True)
class RelayLimits:
    max_answer_bytes: int
    max_event_bytes: int
    abort_timeout_s: float
    resume_patience_s: float  # for a replica to go on with a stream that broke off
    explains_routes: bool = False  # to clients that ask


ObserveTtft = Callable[[float, float], None]  # predicted and actual, in seconds


@dataclass(frozen=True, slots=True)
class Forecasting:
    """Whom it asks and whom it tells."""

    likely_tokens: Callable[[str, Prompt], float]  # of the model: as likely too many as too few
    barred: Callable[[str], frozenset[str]]  # who gets no requests for the model now
    observe_ttft: ObserveTtft
    on_progress: Callable[[], None]  # a replica has more room than before


class Fleet:
    """Where a relay finds replicas."""

    def __init__(
        self,
        pool: ReplicaPool,
        router: Router,
        limits: RelayLimits,
        clock: Clock,
        forecasting: Forecasting,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.clock = clock
        self._forecasting = forecasting
        self._router = router
        self.is_forecasting = False  # until somebody asks: it costs some microseconds a request
        self._prefixes = PrefixMemory()

    def require_candidate(self, request: InferenceRequest) -> None:
        """Raises NoReplicaAvailable."""
        if not self._router.candidates(request.model, request.providers).endpoints:
            raise NoReplicaAvailable(f"No replica that serves '{request.model}' is ready.")

    def has_candidate(self, request: InferenceRequest, tried: Collection[str]) -> bool:
        """One that has not been ``tried``."""
        endpoints = self._router.candidates(request.model, request.providers).endpoints
        return any(endpoint.name not in tried for endpoint in endpoints)

    def choose(
        self, request: InferenceRequest, tried: Collection[str], target_ms: int | None = None
    ) -> Decision:
        """For one that has not been ``tried`` for this request; if it can be, one expected to give
        the first token within ``target_ms``.  Raises NoReplicaAvailable."""
        wanted = RoutingRequest(
            request.model,
            request.affinity,
            request.estimated_prompt_tokens,
            request.estimated_prompt_tokens + request.reserved_completion_tokens,
            () if request.text is None else request.text.chain,
            request.providers,
        )
        decision = self._router.decide(wanted, tried)
        if target_ms is None or self._excess_of(decision.endpoint, request, target_ms) <= 0.0:
            return decision
        group = self._router.candidates(request.model, request.providers)
        endpoints = [e for e in group.endpoints if e.name not in tried]
        excesses_s = [self._excess_of(endpoint, request, target_ms) for endpoint in endpoints]
        best = endpoints[excesses_s.index(min(excesses_s))]
        if best is decision.endpoint:
            return decision
        places, excesses_ms = range(len(endpoints)), [excess_s * 1e3 for excess_s in excesses_s]
        return Decision(best, Reason.LATE, decision.home, endpoints, places, excesses_ms)

    def _excess_of(self, endpoint: Endpoint, request: InferenceRequest, target_ms: int) -> float:
        return self._excess_s(self.pool[endpoint.name], request, target_ms / 1e3)

    # When

    def has_room(
        self, request: InferenceRequest, target_s: float, ahead: Collection[tuple[str, ...]] = ()
    ) -> bool:
        """Some replica is expected to meet the target, or would work on nothing else.

        ``ahead``: the ``providers`` of others, none of whose replicas should be taken from them.
        """
        self.is_forecasting = True
        takers = self._takers(request, ahead)
        return any(self._excess_s(replica, request, target_s) <= 0.0 for replica in takers)

    def has_slack(
        self, request: InferenceRequest, target_s: float, ahead: Collection[tuple[str, ...]] = ()
    ) -> bool:
        """As ``has_room``, for one who should be in nobody's way."""
        self.is_forecasting = True
        forecasts = [self._forecast(r, request) for r in self._takers(request, ahead)]
        return any(f is None or f.excess_in_slack_s(target_s) <= 0.0 for f in forecasts)

    def waited_for(self, ahead: Collection[tuple[str, ...]]) -> frozenset[str]:
        """Who serves any of whoever is ``ahead``, as our own do all."""
        return frozenset(replica.name for replica in self.pool.replicas()).union(*ahead)

    def drain_s(self, request: InferenceRequest, target_s: float, prompt_tokens: int) -> float:
        """Until there is room, if so many tokens more are to be prefilled before."""
        replicas = self._takers(request)
        excess_s = [self._excess_s(replica, request, target_s) for replica in replicas]
        return max(0.0, min(excess_s, default=0.0)) + self._prefill_s(replicas, prompt_tokens)

    def least_drain_s(
        self, request: InferenceRequest, target_s: float, prompt_tokens: int
    ) -> float:
        """As ``drain_s``, of a prompt of no tokens: any other waits longer.

        Of one who should be in nobody's way, too.
        """
        replicas, now_s = self._takers(request), self.clock.monotonic_s()
        forecasts = [replica.forecast.predict(0.0, now_s) for replica in replicas]
        excess_s = [0.0 if f is None else f.excess_s(target_s) for f in forecasts]
        return max(0.0, min(excess_s, default=0.0)) + self._prefill_s(replicas, prompt_tokens)

    def begin(
        self,
        replica: Replica,
        request: InferenceRequest,
        now_s: float,
        cached_tokens: float = 0.0,
        request_id: str = "",
    ) -> Stay:
        """``cached_tokens``: of the prompt, as expected there; ``request_id``: the replica's."""
        if replica.outside is not None:
            return self._begin_outside(replica, replica.outside, request, now_s)
        if request.text is not None:
            self._router.expect(
                request_id, request.text, request.estimated_prompt_tokens, replica.endpoint
            )
        visit = promise = None
        if self.is_forecasting:
            likely_tokens, uncached_tokens = self._prompt_tokens(replica, request)
            promise = self._prefixes.send(
                request.affinity,
                replica.name,
                num_bytes=request.prompt.size,
                prompt=likely_tokens,
            )
            visit = replica.forecast.send(
                uncached_tokens,
                now_s,
                tells_first_token=request.is_stream,
                num_cached=likely_tokens - uncached_tokens,
            )
        uncached = max(0, request.estimated_prompt_tokens - int(cached_tokens))
        num_tokens = uncached + request.reserved_completion_tokens
        return Stay(replica, uncached, num_tokens, visit, promise)

    def _begin_outside(
        self, replica: Replica, outside: Outside, request: InferenceRequest, now_s: float
    ) -> Stay:
        """Of whose cache nothing is expected, nor learned."""
        visit = None
        if self.is_forecasting:
            visit = replica.forecast.send(
                self._likely_tokens(request), now_s, tells_first_token=request.is_stream
            )
        prompt = outside.counted(request.estimated_prompt_tokens)
        stay = Stay(replica, prompt, outside.counted(request.estimated_tokens), visit)
        stay.sent_s = now_s
        return stay

    def first_token(self, stay: Stay, now_s: float) -> None:
        stay.first_token()
        if stay.sent_s is not None and stay.replica.outside is not None:
            stay.replica.outside.note_ttft(now_s - stay.sent_s, now_s)
        if stay.visit is None:
            return
        outcome = stay.replica.forecast.first_token(stay.visit, now_s)
        if outcome is not None:
            self._forecasting.observe_ttft(outcome.predicted_s, outcome.actual_s)
        self._forecasting.on_progress()

    def end(self, stay: Stay, usage: Usage | None = None) -> None:
        """``usage``: as the replica counted, if it did."""
        stay.end()
        if stay.promise is not None:
            self._keep(stay.promise, usage, has_begun=stay.has_begun)
        if stay.visit is None:
            return
        uncached = None if usage is None else usage.prompt_tokens - usage.cached_prompt_tokens
        stay.replica.forecast.end(stay.visit, self.clock.monotonic_s(), uncached)
        self._forecasting.on_progress()

    def _keep(self, promise: Promise, usage: Usage | None, *, has_begun: bool) -> None:
        """What the replica has probably cached from now on."""
        if usage is not None:
            self._prefixes.processed(
                promise,
                prompt=usage.prompt_tokens,
                cached=usage.cached_prompt_tokens,
                answer=usage.completion_tokens,
            )
        elif not has_begun:
            self._prefixes.withdraw(promise)

    def ended(self, replica: str, outcome: Outcome) -> None:
        """Whether it did its part is remembered against it, or for it."""
        if outcome is Outcome.COMPLETED or outcome is Outcome.UPSTREAM_FAILED:
            self.pool.note(replica, is_failure=outcome is Outcome.UPSTREAM_FAILED)

    def found_cached(self, request: InferenceRequest, replica: str, usage: Usage) -> None:
        """How much of the prompt the replica had."""
        self._router.served(
            request.affinity,
            replica,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_prompt_tokens,
        )

    def _likely_tokens(self, request: InferenceRequest) -> float:
        if request.counted is not None:
            return request.estimated_prompt_tokens
        return self._forecasting.likely_tokens(request.model, request.prompt)

    def _prompt_tokens(self, replica: Replica, request: InferenceRequest) -> tuple[float, float]:
        """And those of them that it has probably not cached."""
        num_tokens = self._likely_tokens(request)
        affinity, num_bytes = request.affinity, request.prompt.size
        if request.counted is None:
            num_tokens = self._prefixes.prompt_tokens(
                affinity, replica.name, num_bytes=num_bytes, prompt=num_tokens
            )
        cached = self._prefixes.cached_tokens(affinity, replica.name, num_tokens)
        return num_tokens, max(1.0, num_tokens - cached)

    def _forecast(self, replica: Replica, request: InferenceRequest) -> Forecast | None:
        likely, num_tokens = self._prompt_tokens(replica, request)
        num_cached = likely - num_tokens
        return replica.forecast.predict(num_tokens, self.clock.monotonic_s(), num_cached)

    def _excess_s(self, replica: Replica, request: InferenceRequest, target_s: float) -> float:
        """Unknown is no reason to hold anybody back."""
        forecast = self._forecast(replica, request)
        return 0.0 if forecast is None else forecast.excess_s(target_s)

    def _prefill_s(self, replicas: list[Replica], num_tokens: int) -> float:
        """By all of them together; zero where nothing is known."""
        if num_tokens == 0:
            return 0.0
        now_s = self.clock.monotonic_s()
        forecasts = [replica.forecast.predict(0.0, now_s) for replica in replicas]
        known = sum(1.0 / forecast.per_token_s for forecast in forecasts if forecast is not None)
        return num_tokens / known if known > 0.0 else 0.0

    def _takers(
        self, request: InferenceRequest, ahead: Collection[tuple[str, ...]] = ()
    ) -> list[Replica]:
        """But for whom those who are ``ahead`` wait, and for whom nothing is sent to while others
        are there."""
        endpoints = self._router.candidates(request.model, request.providers).endpoints
        barred = self._forecasting.barred(request.model)
        if barred:
            endpoints = [e for e in endpoints if e.name not in barred] or endpoints
        if ahead:
            waited_for = self.waited_for(ahead)
            endpoints = [e for e in endpoints if e.name not in waited_for]
        return [self.pool[endpoint.name] for endpoint in endpoints]
