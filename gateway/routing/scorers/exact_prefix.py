"""The least to do until the first token, with the tokens that a replica really has cached.

Cost: what is outstanding there, and what of the prompt must be computed, at that replica's speed:
the time until the first token.  And what that computing costs others: those who come meanwhile wait
for it, too, and what it displaces is computed again.  All in tokens of an average replica.

Of a text that this gateway has not sent before it knows nothing: another one may have, to where the
prefix lives.  There the tokens that are usually found again count as cached; and where nobody has
enough to matter, that place decides alone, so that what belongs together comes together also before
the first event tells of it.
"""

from dataclasses import dataclass

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import RoutingRequest
from gateway.routing.prompt_anchors import PromptAnchors
from gateway.routing.ring import ring_point
from gateway.routing.scorers.prefix_owners import PrefixOwners

# Of each token that is computed: what it displaces will be wanted again, if not all of it.
_LEAST_TO_OTHERS, _MOST_TO_OTHERS = 0.3, 4.0


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
            home = group.places.get(group.ring.home(ring_point(request.affinity.key)) or "")
            if home is not None:
                cached[home] = max(cached.get(home, 0.0), usual)
        costs, to_others = self._costs_uncached(request, group), _to_others(request, group)
        for place, tokens in cached.items():
            costs[place] -= tokens * (endpoints[place].slowness + to_others)
        return Scores(range(len(costs)), costs, Reason.CACHED, None, cached)

    def _costs_uncached(self, request: RoutingRequest, group: Candidates) -> list[float]:
        prompt_tokens = request.prompt_tokens
        if group.is_even:
            return [load + prompt_tokens for load in group.loads(request.num_tokens)]
        mean = group.load.tokens / len(group.endpoints)
        return [
            (endpoint.load_tokens + prompt_tokens + (1.0 - endpoint.warmth) * mean)
            * endpoint.slowness
            + endpoint.surcharge * request.num_tokens
            for endpoint in group.endpoints
        ]


def _to_others(request: RoutingRequest, group: Candidates) -> float:
    """What a token costs others, of what it costs the one whose it is.

    As many wait behind it as are about at a replica, itself not counted: queues stay as long as
    they are while this request is there.  On an idle fleet a second copy of a prefix is nearly
    free; on a busy one it is not worth what all the others wait for it.
    """
    num_about = group.load.tokens / (len(group.endpoints) * max(1, request.num_tokens))
    return min(_MOST_TO_OTHERS, max(_LEAST_TO_OTHERS, num_about - 1.0))
