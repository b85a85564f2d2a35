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
        present = [endpoint.name for endpoint in endpoints]
        scores = [0.0] * len(present)
        scores[self._choose(request.affinity_key, present, endpoints)] = 1.0
        return scores

    def _choose(self, key: bytes, present: list[str], endpoints: Sequence[Endpoint]) -> int:
        order = self._ring.successors(key, present)
        home = present.index(order[0])
        if endpoints[home].num_in_flight < _FREE_IN_FLIGHT:
            return home
        in_flight = [endpoint.num_in_flight for endpoint in endpoints]
        share = math.ceil(_LOAD_FACTOR * (sum(in_flight) + 1) / len(in_flight))
        bound = max(_FREE_IN_FLIGHT, share)
        for name in order:
            index = present.index(name)
            if in_flight[index] < bound:
                return index
        return home
