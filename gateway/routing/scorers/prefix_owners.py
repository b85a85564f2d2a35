"""Prefer those where the prefix lives, as long as they have no more than their share to do.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2017), the load in tokens.
What does not fit at home makes the next one on the ring an owner, too, so that a hot prefix lives
in as many places as it needs; when the next one is busy, the request goes to the least busy of all.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from gateway.prompt import Affinity
from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.ring import ring_point
from gateway.routing.scorers.least_tokens import LeastTokens

_KEY_SHARES: Final = 65_536  # in which the keys of one that joins move to it


class PrefixOwners:
    name = "prefix_owners"

    def __init__(
        self,
        hot: HotPrefixes,
        least_tokens: LeastTokens,
        *,
        load_factor: float,
        free_tokens: int,
        least_prefix_tokens: int,
    ) -> None:
        """``load_factor``: of the mean, more than which is too much; ``free_tokens`` never are.
        A prompt below ``least_prefix_tokens`` is computed sooner than it is found again."""
        self._hot = hot
        self._least_tokens = least_tokens
        self._load_factor = load_factor
        self._free_tokens = free_tokens
        self._least_prefix_tokens = least_prefix_tokens

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        affinity = request.affinity
        if request.prompt_tokens < self._least_prefix_tokens and not affinity.is_clients:
            return self._least_tokens.score(request, group)
        point = ring_point(affinity.key)
        num_owners = self._hot.num_owners(point)
        bound = self._bound(request, group)
        if num_owners == 1:
            home = group.places.get(group.ring.home(point))
            if home is not None:
                endpoint = group.endpoints[home]
                if endpoint.load_tokens < bound and endpoint.warmth == 1.0:
                    return Scores((home,), (endpoint.load_tokens,), Reason.HOME, endpoint.name)
        return self._among_owners(affinity, point, num_owners, bound, group)

    def _bound(self, request: RoutingRequest, group: Candidates) -> float:
        """Below which one may get the request.  Somebody always is, or is idle."""
        mean = (group.load.tokens + request.num_tokens) / len(group.endpoints)
        return max(self._free_tokens, self._load_factor * mean)

    def _among_owners(
        self, affinity: Affinity, point: int, num_owners: int, bound: float, group: Candidates
    ) -> Scores:
        walk = _members(point, group)
        owners = list(islice(walk, num_owners))
        endpoints = group.endpoints
        home = endpoints[owners[0]].name
        reason = Reason.HOME if len(owners) == 1 else Reason.OWNER
        usual = owners[0]
        if len(owners) > 1:
            usual = owners[ring_point(affinity.conversation) % len(owners)]
        if endpoints[usual].load_tokens < bound:
            return Scores((usual,), (endpoints[usual].load_tokens,), reason, home)
        self._hot.press(point)
        free = [place for place in owners if endpoints[place].load_tokens < bound]
        if free:
            return Scores(free, [endpoints[place].load_tokens for place in free], reason, home)
        heir = next(walk, None)
        if heir is not None and endpoints[heir].load_tokens < bound:
            self._hot.grow(point, len(owners) + 1)
            return Scores((heir,), (endpoints[heir].load_tokens,), Reason.GROWN, home)
        return self._least_tokens.spread(group, Reason.SPILL, home)


def _members(point: int, group: Candidates) -> Iterator[int]:
    """Places in the ring's order.  One that has just joined takes its keys over by and by, each
    from where it lived before: the next on the ring."""
    cold: list[int] = []
    for name in group.ring.walk(point):
        place = group.places.get(name)
        if place is None:
            continue
        if _has_moved(point, group.endpoints[place]):
            yield place
        else:
            cold.append(place)
    yield from cold


def _has_moved(point: int, endpoint: Endpoint) -> bool:
    return point % _KEY_SHARES < endpoint.warmth * _KEY_SHARES
