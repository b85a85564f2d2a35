"""Consistent hashing: which endpoint a key lives on, and how little moves when one leaves."""

import hashlib
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from uhashring import HashRing

_VIRTUAL_NODES = 160  # per endpoint: shares within about a tenth of each other
_MAX_RINGS = 64  # sets of candidates seen at once; each takes milliseconds to build


@dataclass(frozen=True, slots=True)
class _Ring:
    """The points of a hash ring in order, looked up without the library's own detours."""

    points: list[int]
    names: list[str]  # of each point
    orders: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by where one begins

    def order(self, key: bytes) -> tuple[str, ...]:
        digest = hashlib.blake2b(key, digest_size=8).digest()  # as _hash
        index = bisect(self.points, int.from_bytes(digest, "big")) % len(self.points)
        order = self.orders.get(index)
        if order is None:
            order = tuple(dict.fromkeys(self.names[index:] + self.names[:index]))
            self.orders[index] = order
        return order


class PrefixRing:
    """A ring over exactly the given names, so that removing one moves its keys and no others."""

    def __init__(self) -> None:
        self._rings: dict[tuple[str, ...], _Ring] = {}

    def home(self, key: bytes, names: Iterable[str]) -> str:
        """The name on which ``key`` lives.  ``names`` holds at least one."""
        return self.successors(key, names)[0]

    def successors(self, key: bytes, names: Iterable[str]) -> Sequence[str]:
        """All names, from ``key``'s home on around the ring."""
        return self._ring(tuple(names)).order(key)

    def _ring(self, names: tuple[str, ...]) -> _Ring:
        ring = self._rings.get(names)
        if ring is None:
            if len(self._rings) >= _MAX_RINGS:
                self._rings.clear()
            hashed = HashRing(sorted(names), vnodes=_VIRTUAL_NODES, hash_fn=_hash)
            points = hashed.get_points()
            ring = _Ring([int(point) for point, _ in points], [str(name) for _, name in points])
            self._rings[names] = ring
        return ring


def _hash(key: str | bytes) -> int:
    encoded = key if isinstance(key, bytes) else key.encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")
