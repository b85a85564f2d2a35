"""Whoever has the fewest tokens to do: for requests without a prefix, and for what spills over.

Where it is unknown what other gateways send, all of them would take the same one for idle.  Two
drawn by chance, and the better of them, keep that from happening (Mitzenmacher, 2001).
"""

from collections.abc import Callable

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import RoutingRequest


class LeastTokens:
    name = "least_tokens"

    def __init__(self, random: Callable[[], float]) -> None:
        """``random``: from 0 to below 1."""
        self._random = random

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        return self.spread(request, group, Reason.NO_PREFIX)

    def spread(
        self, request: RoutingRequest, group: Candidates, reason: Reason, home: str | None = None
    ) -> Scores:
        num, num_tokens = len(group.endpoints), request.num_tokens
        places = self._two_of(num) if group.is_blind and num > 2 else range(num)
        mean = group.load.tokens / num
        costs = [  # one that has just joined counts as busy as the others, and less by and by
            endpoint.load_tokens + endpoint.surcharge * num_tokens
            if endpoint.warmth == 1.0
            else endpoint.load_tokens + (1.0 - endpoint.warmth) * mean
            for endpoint in map(group.endpoints.__getitem__, places)
        ]
        return Scores(places, costs, reason, home)

    def _two_of(self, num: int) -> tuple[int, int]:
        first = int(self._random() * num)
        second = int(self._random() * (num - 1))
        return first, second + (second >= first)
