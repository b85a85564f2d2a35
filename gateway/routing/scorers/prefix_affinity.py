"""Prefer the endpoint whose prefix cache probably holds this prompt's beginning."""

from collections.abc import Sequence

from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.ring import PrefixRing


class PrefixAffinityScorer:
    name = "prefix_affinity"

    def __init__(self, ring: PrefixRing) -> None:
        self._ring = ring

    def score(self, request: RoutingRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        home = self._ring.home(request.affinity_key, [e.name for e in endpoints])
        return [1.0 if endpoint.name == home else 0.0 for endpoint in endpoints]
