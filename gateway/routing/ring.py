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
        self._points_of: dict[str, list[int]] = {}  # each hashed once
        self._points: list[int] = []
        self._names: list[str] = []  # of each point
        self.set_members(names)

    def set_members(self, names: Iterable[str]) -> None:
        """The keys of those that stay do not move, but to one that joins."""
        self._points_of = {n: self._points_of.get(n) or _points(n) for n in sorted(names)}
        placed = sorted((point, n) for n, points in self._points_of.items() for point in points)
        self._points = [point for point, _ in placed]
        self._names = [name for _, name in placed]

    def home(self, point: int) -> str:
        """Of at least one member."""
        return self._names[bisect(self._points, point) % len(self._points)]

    def walk(self, point: int) -> Iterator[str]:
        """Every member once, from home on around the ring."""
        start = bisect(self._points, point)
        seen: set[str] = set()
        for index in range(start - len(self._names), start):  # from the end for those before 0
            name = self._names[index]
            if name not in seen:
                seen.add(name)
                yield name


def _points(name: str) -> list[int]:
    ring = HashRing([name], vnodes=_VIRTUAL_NODES, hash_fn=_hash)
    return [int(point) for point, _ in ring.get_points()]


def _hash(key: str) -> int:
    return ring_point(key.encode())
