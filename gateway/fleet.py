"""The replicas as one request sees them: which may take it, and which takes it next."""

from dataclasses import dataclass

from gateway.api.context import InferenceRequest
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.routing.endpoint import RoutingRequest
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
        self._candidates: dict[str, list[Replica]] = {}  # by model, as of that version
        self._version = pool.version

    def require_candidate(self, request: InferenceRequest) -> None:
        """Raises NoReplicaAvailable."""
        if not self._candidates_for(request.model):
            raise NoReplicaAvailable(f"No replica that serves '{request.model}' is ready.")

    def choose(self, request: InferenceRequest, tried: frozenset[str]) -> Replica:
        """One that has not been ``tried`` for this request.  Raises NoReplicaAvailable."""
        replicas = self._candidates_for(request.model)
        endpoints = [replica.endpoint for replica in replicas if replica.name not in tried]
        if not endpoints:
            raise NoReplicaAvailable("No replica can take this request now.")
        if len(endpoints) == 1:
            return self.pool[endpoints[0].name]  # nothing to choose
        wanted = RoutingRequest(request.model, request.affinity_key)
        return self.pool[self._profile.best(wanted, endpoints)]

    def _candidates_for(self, model: str) -> list[Replica]:
        """Filtered once for each change of the pool: what filters look at changes no faster."""
        if self._version != self.pool.version:
            self._candidates.clear()
            self._version = self.pool.version
        candidates = self._candidates.get(model)
        if candidates is None:
            wanted = RoutingRequest(model, b"")
            kept = self._profile.candidates(wanted, self.pool.endpoints())
            candidates = [self.pool[endpoint.name] for endpoint in kept]
            self._candidates[model] = candidates
        return candidates
