"""Consistent hashing: which member a key lives on, and how little moves when one leaves.

A member's points depend on its name alone, so every gateway builds the same ring, and a member that
comes back under its name finds its keys again.
"""

import hashlib
from bisect import bisect
from collections.abc import Iterable, Iterator
from typing import Final

from uhashring import HashRing

_VIRTUAL_NODES: Final = 160  # per member: shares within about a tenth of each other
_POINT_BYTES: Final = 8


def ring_point(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=_POINT_BYTES).digest(), "big")


class PrefixRing:
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._points_of: dict[str, list[int]] = {}
        self._points: list[int] = []
        self._name_at: dict[int, str] = {}  # by point: of 64 bits, so that no two meet
        self.set_members(names)

    def set_members(self, names: Iterable[str]) -> None:
        """The keys of those that stay do not move, but to one that joins.

        Costs a merge: a thousand members are a hundred and sixty thousand points.
        """
        wanted = set(names)
        leaving, joining = self._points_of.keys() - wanted, wanted - self._points_of.keys()
        for name in leaving:
            for point in self._points_of.pop(name):
                del self._name_at[point]
        if leaving:
            self._points = [point for point in self._points if point in self._name_at]
        for name in joining:
            self._points_of[name] = points = _points(name)
            self._name_at |= dict.fromkeys(points, name)
        if joining:
            new = sorted(point for name in joining for point in self._points_of[name])
            self._points = sorted(self._points + new)  # of two sorted runs

    def home(self, point: int) -> str | None:
        """``None``: it has no member."""
        points = self._points
        if not points:
            return None
        return self._name_at[points[bisect(points, point) % len(points)]]

    def walk(self, point: int) -> Iterator[str]:
        """Every member once, from home on around the ring."""
        start = bisect(self._points, point)
        seen: set[str] = set()
        for index in range(start - len(self._points), start):  # from the end for those before 0
            name = self._name_at[self._points[index]]
            if name not in seen:
                seen.add(name)
                yield name


def _points(name: str) -> list[int]:
    ring = HashRing([name], vnodes=_VIRTUAL_NODES, hash_fn=_hash)
    return [int(point) for point, _ in ring.get_points()]


def _hash(key: str) -> int:
    return ring_point(key.encode())
