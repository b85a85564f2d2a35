"""The least to do until the first token, with the tokens that a replica really has cached.

Cost: what is outstanding there, and what of the prompt must be computed, both in tokens of an
average replica.  Where nobody holds enough to matter, those where the prefix lives decide, so that
what belongs together comes together, also before the first event tells of it.
"""

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import RoutingRequest
from gateway.routing.prompt_anchors import PromptAnchors
from gateway.routing.scorers.prefix_owners import PrefixOwners


class ExactPrefix:
    name = "exact_prefix"

    def __init__(
        self, anchors: PromptAnchors, owners: PrefixOwners, *, least_prefix_tokens: int
    ) -> None:
        self._anchors = anchors
        self._owners = owners
        self._least_prefix_tokens = least_prefix_tokens

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        found = self._anchors.find(request.chain, group.bits)
        if not found or found[0][1] < self._least_prefix_tokens:
            return self._owners.score(request, group)
        costs = self._costs_uncached(request, group)
        places = group.places_by_bit
        for bits, num_tokens in found:
            while bits:
                bit = bits & -bits
                bits ^= bit
                place = places[bit]
                costs[place] -= num_tokens * group.endpoints[place].slowness
        return Scores(range(len(costs)), costs, Reason.CACHED)

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
