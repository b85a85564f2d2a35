"""The least to do until the first token, with the tokens that a replica really has cached.

Cost: what is outstanding there, and what of the prompt must be computed, at that replica's speed;
and what the computed tokens displace there.  All in tokens of an average replica.

Of a text that this gateway has not sent before it knows nothing: another one may have, to where the
prefix lives.  There the tokens that are usually found again count as cached; and where nobody has
enough to matter, that place decides alone, so that what belongs together comes together also before
the first event tells of it.
"""

from dataclasses import dataclass
from typing import Final

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import RoutingRequest
from gateway.routing.prompt_anchors import PromptAnchors
from gateway.routing.ring import ring_point
from gateway.routing.scorers.prefix_owners import PrefixOwners

_DISPLACED: Final = 1.0  # for each token that is computed where it was not cached


@dataclass(frozen=True, slots=True)
class ExactPrefix:
    anchors: PromptAnchors
    owners: PrefixOwners
    name: str = "exact_prefix"

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        found = self.anchors.find(request.chain, group.bits)
        if not found.holders or found.holders[0][1] < self.owners.least_prefix_tokens:
            return self.owners.score(request, group)
        endpoints, places = group.endpoints, group.places_by_bit
        cached: dict[int, float] = {}
        for bits, num_tokens in found.holders:
            while bits:
                bit = bits & -bits
                bits ^= bit
                cached[places[bit]] = num_tokens
        usual = self.owners.reuse.expected_tokens(request.affinity, request.prompt_tokens)
        if found.known_tokens < usual:
            home = group.places.get(group.ring.home(ring_point(request.affinity.key)))
            if home is not None:
                cached[home] = max(cached.get(home, 0.0), usual)
        costs = self._costs_uncached(request, group)
        for place, tokens in cached.items():
            costs[place] -= tokens * (endpoints[place].slowness + _DISPLACED)
        return Scores(range(len(costs)), costs, Reason.CACHED, None, cached)

    def _costs_uncached(self, request: RoutingRequest, group: Candidates) -> list[float]:
        prompt_tokens = request.prompt_tokens
        if group.is_even:
            return [endpoint.load_tokens + prompt_tokens for endpoint in group.endpoints]
        mean = group.load.tokens / len(group.endpoints)
        return [
            (endpoint.load_tokens + prompt_tokens + (1.0 - endpoint.warmth) * mean)
            * endpoint.slowness
            for endpoint in group.endpoints
        ]
