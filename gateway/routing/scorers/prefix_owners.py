"""Prefer those where the prefix lives, as long as that costs less than having it elsewhere, too.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2017), the load in tokens:
home is where a key hashes to, up to its share of the whole load, what the request adds included.
Beyond it home is still worth waiting for as long as computing the prefix elsewhere takes, and what
that would displace there; the more often a prefix is wanted, the less each of its requests has to
wait for it.  What does not go home makes the next one on the ring an owner, too, so that a hot
prefix lives in as many places as it needs; when that one is busy, the request goes to the least
busy of all.  A conversation that goes on is where it went before, for most of what it needs is not
the prefix that others share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.ring import ring_point
from gateway.routing.scorers.least_tokens import LeastTokens

_KEY_SHARES: Final = 65_536  # in which the keys of one that joins move to it
_TIMES_THE_SAVING: Final = 2.0  # it is computed again, and so is what it displaces
_LEAST_RATIO: Final = 0.1  # of a prompt: with less to be found again, any place is as good
_HEIR_SHARE: Final = 0.5  # of what home is worth: the heir has it only from the next time on


@dataclass(frozen=True, slots=True)
class PrefixOwners:
    hot: HotPrefixes
    reuse: PrefixReuse
    least_tokens: LeastTokens
    load_factor: float  # of the mean load: an owner's share
    least_prefix_tokens: int  # fewer are computed sooner than they are found again
    name: str = "prefix_owners"

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        affinity = request.affinity
        if not group.keeps_prefixes:
            return self.least_tokens.score(request, group)
        if request.prompt_tokens < self.least_prefix_tokens and not affinity.is_clients:
            return self.least_tokens.score(request, group)
        saving = self.reuse.expected_tokens(affinity, request.prompt_tokens)
        if saving < _LEAST_RATIO * request.prompt_tokens:
            return self.least_tokens.score(request, group)
        point = ring_point(affinity.key)
        uses = 1.0
        if affinity.conversation != affinity.key:  # else its turns come one after another
            last = group.places.get(self.hot.last_of(affinity) or "")
            if last is not None and self._is_worth_it(last, request, saving, group):
                first = group.places.get(group.ring.home(point) or "", last)
                return _at(last, request, group, saving, () if first == last else (first, last))
            uses = self.hot.use(point)
        worth = _TIMES_THE_SAVING * saving / uses
        if point not in self.hot.owners:
            home = group.places.get(group.ring.home(point) or "")
            if home is not None:
                endpoint = group.endpoints[home]
                load = endpoint.load_tokens
                if endpoint.warmth == 1.0 and (  # as if another were idle
                    load <= worth or load <= self._share(request, saving, group)
                ):
                    return _at(home, request, group, saving)
        return self._among_owners(request, point, saving, worth, group)

    def _is_worth_it(
        self, place: int, request: RoutingRequest, saving: float, group: Candidates
    ) -> bool:
        """To wait for what nobody else has."""
        load, worth = group.endpoints[place].load_tokens, _TIMES_THE_SAVING * saving
        if load <= max(worth, self._share(request, saving, group)):
            return True
        return load <= worth + min(endpoint.load_tokens for endpoint in group.endpoints)

    def _share(self, request: RoutingRequest, saving: float, group: Candidates) -> float:
        """What an owner may have without it: its share, less what this one adds there."""
        adds = request.num_tokens - saving
        mean = (group.load.tokens + adds) / len(group.endpoints)
        return max(0.0, self.load_factor * mean - adds)

    def _among_owners(
        self, request: RoutingRequest, point: int, saving: float, worth: float, group: Candidates
    ) -> Scores:
        """Looks at everybody's load."""
        loads = group.loads(request.num_tokens)
        walk = iter(group.walk(point)) if group.is_even else _members(point, group)
        owners = list(islice(walk, self.hot.num_owners(point)))
        usual = owners[0]
        if len(owners) > 1:
            usual = owners[ring_point(request.affinity.conversation) % len(owners)]
        least, share = min(loads), self._share(request, saving, group)
        most = max(share, least + worth)
        if loads[usual] <= most and loads[usual] <= min(map(loads.__getitem__, owners)) + worth:
            return _at(usual, request, group, saving, owners)
        self.hot.press(point)
        home = group.endpoints[owners[0]].name
        free = [place for place in owners if loads[place] <= most]
        if free:
            costs = [loads[place] + request.prompt_tokens - saving for place in free]
            return Scores(free, costs, Reason.OWNER, home, dict.fromkeys(free, saving))
        heir = next(walk, None)
        if heir is not None and loads[heir] <= max(share, least + _HEIR_SHARE * worth):
            self.hot.grow(point, len(owners) + 1)
            return Scores((heir,), (loads[heir] + request.prompt_tokens,), Reason.GROWN, home)
        return self.least_tokens.spread(request, group, Reason.SPILL, home)


def _at(
    place: int,
    request: RoutingRequest,
    group: Candidates,
    saving: float,
    owners: Sequence[int] = (),
) -> Scores:
    """That one, where the prefix lives."""
    cost = group.endpoints[place].load_tokens + request.prompt_tokens - saving
    home = group.endpoints[owners[0] if owners else place].name
    reason = Reason.OWNER if len(owners) > 1 else Reason.HOME
    return Scores((place,), (cost,), reason, home, {place: saving})


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
