"""The replicas as one request sees them: which may take it, and which takes it next."""

from dataclasses import dataclass

from gateway.api.context import InferenceRequest
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.routing.endpoint import RoutingRequest
from gateway.routing.pool import Replica, ReplicaPool
from gateway.routing.profile import NoEndpointAvailable, RoutingProfile


@dataclass(frozen=True, slots=True)
class RelayLimits:
    max_answer_bytes: int
    max_event_bytes: int
    abort_timeout_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where a relay finds replicas."""

    pool: ReplicaPool
    profile: RoutingProfile
    limits: RelayLimits
    clock: Clock

    def require_candidate(self, request: InferenceRequest) -> None:
        """Raises NoReplicaAvailable."""
        if not self.profile.has_candidate(_wanted(request, frozenset()), self.pool.endpoints()):
            raise NoReplicaAvailable(f"No replica that serves '{request.model}' is ready.")

    def choose(self, request: InferenceRequest, tried: frozenset[str]) -> Replica:
        """Raises NoReplicaAvailable."""
        try:
            name = self.profile.route(_wanted(request, tried), self.pool.endpoints())
        except NoEndpointAvailable as exc:
            raise NoReplicaAvailable("No replica can take this request now.") from exc
        return self.pool[name]


def _wanted(request: InferenceRequest, tried: frozenset[str]) -> RoutingRequest:
    return RoutingRequest(request.model, request.affinity_key, tried)
