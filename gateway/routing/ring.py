"""Consistent hashing: which endpoint a key lives on, and how little moves when one leaves."""

import hashlib
from collections.abc import Iterable, Iterator

from uhashring import HashRing

_VIRTUAL_NODES = 160  # per endpoint: shares within about a tenth of each other
_MAX_RINGS = 64  # sets of candidates seen at once; each takes milliseconds to build


class PrefixRing:
    """A ring over exactly the given names, so that removing one moves its keys and no others."""

    def __init__(self) -> None:
        self._rings: dict[tuple[str, ...], HashRing] = {}

    def home(self, key: bytes, names: Iterable[str]) -> str:
        """The name on which ``key`` lives.  ``names`` holds at least one."""
        ring = self._ring(tuple(sorted(names)))
        return str(ring.get_node(key))

    def successors(self, key: bytes, names: Iterable[str]) -> Iterator[str]:
        """All names, from ``key``'s home on around the ring.  Walks it: not for every request."""
        return map(str, self._ring(tuple(sorted(names))).iterate_nodes(key))

    def _ring(self, names: tuple[str, ...]) -> HashRing:
        ring = self._rings.get(names)
        if ring is None:
            if len(self._rings) >= _MAX_RINGS:
                self._rings.clear()
            ring = HashRing(list(names), vnodes=_VIRTUAL_NODES, hash_fn=_hash)
            self._rings[names] = ring
        return ring


def _hash(key: str | bytes) -> int:
    encoded = key if isinstance(key, bytes) else key.encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")
