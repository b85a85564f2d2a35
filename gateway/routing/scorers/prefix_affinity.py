"""Prefer the endpoint whose prefix cache probably holds this prompt's beginning.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2017): a key whose home has
more than its share in flight goes to the next on the ring, so one popular prefix does not drown one
replica while the others idle.
"""

import math
from collections.abc import Sequence

from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.ring import PrefixRing

_LOAD_FACTOR = 1.25  # of the mean: the paper's trade between balance and moved keys
_FREE_IN_FLIGHT = 8  # below this nothing queues, so affinity costs nothing


class PrefixAffinityScorer:
    name = "prefix_affinity"

    def __init__(self, ring: PrefixRing) -> None:
        self._ring = ring

    def score(self, request: RoutingRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        chosen = self._choose(request.affinity_key, endpoints)
        return [1.0 if endpoint.name == chosen else 0.0 for endpoint in endpoints]

    def _choose(self, key: bytes, endpoints: Sequence[Endpoint]) -> str:
        present = [endpoint.name for endpoint in endpoints]
        names = self._ring.successors(key, present)
        home = names[0]
        if endpoints[present.index(home)].num_in_flight < _FREE_IN_FLIGHT:
            return home
        in_flight = {endpoint.name: endpoint.num_in_flight for endpoint in endpoints}
        share = math.ceil(_LOAD_FACTOR * (sum(in_flight.values()) + 1) / len(in_flight))
        bound = max(_FREE_IN_FLIGHT, share)
        if in_flight[home] < bound:
            return home
        return next((name for name in names if in_flight[name] < bound), home)
