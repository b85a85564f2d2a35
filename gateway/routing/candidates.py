"""Those that may take a model's requests, with what all of them have to do: summed as it changes,
for a decision among a thousand must not look at each."""

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final

from gateway.routing.endpoint import Endpoint, LoadSum
from gateway.routing.ring import PrefixRing

_MAX_WALKS: Final = 1_024
_load_of = attrgetter("load_tokens")


class Candidates:
    def __init__(
        self, endpoints: Sequence[Endpoint], ring: PrefixRing, *, is_blind: bool = False
    ) -> None:
        """``ring``: over these and maybe more.  ``is_blind``: what others send there is unknown."""
        self.endpoints = endpoints
        self.ring = ring
        self.is_blind = is_blind
        self.places = {endpoint.name: place for place, endpoint in enumerate(endpoints)}
        self.places_by_bit = {endpoint.block_bit: place for place, endpoint in enumerate(endpoints)}
        self.bits = sum(bit for bit in self.places_by_bit if bit)  # of those that tell their blocks
        self._walks: dict[int, Sequence[int]] = {}
        self.keeps_prefixes = any(endpoint.keeps_prefixes for endpoint in endpoints)
        self._has_surcharges = any(endpoint.surcharge for endpoint in endpoints)
        self.is_even = False
        self.look()
        self.load = LoadSum(sum(endpoint.load_tokens for endpoint in endpoints))

    def __len__(self) -> int:
        return len(self.endpoints)

    def walk(self, point: int) -> Sequence[int]:
        """All places in the ring's order, from a point on that is asked for often."""
        walk = self._walks.get(point)
        if walk is None:
            if len(self._walks) >= _MAX_WALKS:
                self._walks.clear()
            names = self.ring.walk(point)
            walk = [self.places[name] for name in names if name in self.places]
            self._walks[point] = walk
        return walk

    def loads(self, num_tokens: int) -> list[float]:
        """Of all, as they count for a request of so many tokens."""
        if not self._has_surcharges:
            return list(map(_load_of, self.endpoints))
        return [e.load_tokens + e.surcharge * num_tokens for e in self.endpoints]

    def look(self) -> None:
        """Whether all are as fast as another, and warm."""
        self.is_even = all(e.warmth == 1.0 and e.slowness == 1.0 for e in self.endpoints)

    def follow(self) -> None:
        """From now on the sum keeps up with its endpoints."""
        for endpoint in self.endpoints:
            endpoint.sums.append(self.load)

    def without(self, names: Collection[str]) -> "Candidates":
        """For one decision: its sum stands still."""
        left = [endpoint for endpoint in self.endpoints if endpoint.name not in names]
        return Candidates(left, self.ring, is_blind=self.is_blind)
