"""The replicas as one request sees them: which may take it, which takes it next, and when."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.api.context import InferenceRequest
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.metering import Usage
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.pool import Replica, ReplicaPool
from gateway.routing.prefix_memory import PrefixMemory
from gateway.routing.profile import RoutingProfile
from gateway.routing.ttft_forecast import Forecast, Visit


@dataclass(frozen=True, slots=True)
class RelayLimits:
    max_answer_bytes: int
    max_event_bytes: int
    abort_timeout_s: float


ObserveTtft = Callable[[float, float], None]  # predicted and actual, in seconds


class Fleet:
    """Where a relay finds replicas."""

    def __init__(
        self,
        pool: ReplicaPool,
        profile: RoutingProfile,
        limits: RelayLimits,
        clock: Clock,
        observe_ttft: ObserveTtft,
        on_progress: Callable[[], None],
    ) -> None:
        """``on_progress``: a replica has more room than before."""
        self.pool = pool
        self.limits = limits
        self.clock = clock
        self._on_progress = on_progress
        self._is_forecasting = False  # until somebody asks: it costs some microseconds a request
        self._profile = profile
        self._observe_ttft = observe_ttft
        self._prefixes = PrefixMemory()
        self._candidates: dict[str, list[Endpoint]] = {}  # by model, as of that version
        self._version = pool.version

    def require_candidate(self, request: InferenceRequest) -> None:
        """Raises NoReplicaAvailable."""
        if not self._candidates_for(request.model):
            raise NoReplicaAvailable(f"No replica that serves '{request.model}' is ready.")

    def choose(
        self, request: InferenceRequest, tried: Collection[str], target_ms: int | None = None
    ) -> Replica:
        """One that has not been ``tried`` for this request; if it can be, one expected to give the
        first token within ``target_ms``.  Raises NoReplicaAvailable."""
        endpoints = self._candidates_for(request.model)
        if tried:
            endpoints = [endpoint for endpoint in endpoints if endpoint.name not in tried]
        if not endpoints:
            raise NoReplicaAvailable("No replica can take this request now.")
        if len(endpoints) == 1:
            return self.pool[endpoints[0].name]  # nothing to choose
        wanted = RoutingRequest(request.model, request.affinity_key)
        best = self.pool[self._profile.best(wanted, endpoints).name]
        if target_ms is None or self._excess_s(best, request, target_ms / 1e3) <= 0.0:
            return best
        replicas = [self.pool[endpoint.name] for endpoint in endpoints]
        return min(replicas, key=lambda other: self._excess_s(other, request, target_ms / 1e3))

    # When

    def has_room(self, request: InferenceRequest, target_s: float) -> bool:
        """Some replica is expected to meet the target, or would work on nothing else."""
        self._is_forecasting = True
        return any(
            self._excess_s(replica, request, target_s) <= 0.0
            for replica in self._replicas_for(request.model)
        )

    def drain_s(self, request: InferenceRequest, target_s: float, prompt_tokens: int) -> float:
        """Until there is room, if so many tokens more are to be prefilled before."""
        replicas = self._replicas_for(request.model)
        excess_s = [self._excess_s(replica, request, target_s) for replica in replicas]
        return max(0.0, min(excess_s, default=0.0)) + prompt_tokens / self._tokens_per_s(replicas)

    def begin(self, replica: Replica, request: InferenceRequest, now_s: float) -> Visit | None:
        replica.begin()
        if not self._is_forecasting:
            return None
        num_tokens = self._num_tokens(replica, request)
        return replica.forecast.send(num_tokens, now_s, tells_first_token=request.is_stream)

    def first_token(self, replica: Replica, visit: Visit | None, now_s: float) -> None:
        if visit is None:
            return
        outcome = replica.forecast.first_token(visit, now_s)
        if outcome is not None:
            self._observe_ttft(outcome.predicted_s, outcome.actual_s)
        self._on_progress()

    def end(self, replica: Replica, visit: Visit | None) -> None:
        replica.end()
        if visit is None:
            return
        replica.forecast.end(visit)
        self._on_progress()

    def processed(self, request: InferenceRequest, replica: str, usage: Usage) -> None:
        """What the replica has probably cached from now on."""
        if not self._is_forecasting:
            return
        self._prefixes.processed(
            request.affinity_key,
            replica,
            prompt=usage.prompt_tokens,
            cached=usage.cached_prompt_tokens,
            answer=usage.completion_tokens,
        )

    def _num_tokens(self, replica: Replica, request: InferenceRequest) -> float:
        num_tokens = request.estimated_prompt_tokens
        cached = self._prefixes.cached_tokens(request.affinity_key, replica.name, num_tokens)
        return max(1.0, num_tokens - cached)

    def _forecast(self, replica: Replica, request: InferenceRequest) -> Forecast | None:
        num_tokens = self._num_tokens(replica, request)
        return replica.forecast.predict(num_tokens, self.clock.monotonic_s())

    def _excess_s(self, replica: Replica, request: InferenceRequest, target_s: float) -> float:
        """Unknown is no reason to hold anybody back."""
        forecast = self._forecast(replica, request)
        return 0.0 if forecast is None else forecast.excess_s(target_s)

    def _tokens_per_s(self, replicas: list[Replica]) -> float:
        now_s = self.clock.monotonic_s()
        forecasts = [replica.forecast.predict(0.0, now_s) for replica in replicas]
        known = sum(1.0 / forecast.per_token_s for forecast in forecasts if forecast is not None)
        return known if known > 0.0 else float("inf")

    def _replicas_for(self, model: str) -> list[Replica]:
        return [self.pool[endpoint.name] for endpoint in self._candidates_for(model)]

    def _candidates_for(self, model: str) -> list[Endpoint]:
        """Filtered once for each change of the pool: what filters look at changes no faster."""
        if self._version != self.pool.version:
            self._candidates.clear()
            self._version = self.pool.version
        candidates = self._candidates.get(model)
        if candidates is None:
            wanted = RoutingRequest(model, b"")
            candidates = list(self._profile.candidates(wanted, self.pool.endpoints()))
            self._candidates[model] = candidates
        return candidates
