"""The replicas as one request sees them: which may take it, and which takes it next."""

from collections.abc import Collection
from dataclasses import dataclass

from gateway.api.context import InferenceRequest
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.pool import Replica, ReplicaPool
from gateway.routing.profile import RoutingProfile


@dataclass(frozen=True, slots=True)
class RelayLimits:
    max_answer_bytes: int
    max_event_bytes: int
    abort_timeout_s: float


class Fleet:
    """Where a relay finds replicas."""

    def __init__(
        self, pool: ReplicaPool, profile: RoutingProfile, limits: RelayLimits, clock: Clock
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.clock = clock
        self._profile = profile
        self._candidates: dict[str, list[Endpoint]] = {}  # by model, as of that version
        self._version = pool.version

    def require_candidate(self, request: InferenceRequest) -> None:
        """Raises NoReplicaAvailable."""
        if not self._candidates_for(request.model):
            raise NoReplicaAvailable(f"No replica that serves '{request.model}' is ready.")

    def choose(self, request: InferenceRequest, tried: Collection[str]) -> Replica:
        """One that has not been ``tried`` for this request.  Raises NoReplicaAvailable."""
        endpoints = self._candidates_for(request.model)
        if tried:
            endpoints = [endpoint for endpoint in endpoints if endpoint.name not in tried]
        if not endpoints:
            raise NoReplicaAvailable("No replica can take this request now.")
        if len(endpoints) == 1:
            return self.pool[endpoints[0].name]  # nothing to choose
        wanted = RoutingRequest(request.model, request.affinity_key)
        return self.pool[self._profile.best(wanted, endpoints).name]

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
