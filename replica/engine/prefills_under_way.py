"""Which blocks of prompts are being computed right now, and by whom: nobody computes them twice."""

from collections.abc import Iterable

from replica.engine.prefix import Prefix


class PrefillsUnderWay:
    """Only a hint: a colliding hash makes somebody wait a few steps and nothing else."""

    def __init__(self) -> None:
        self._owner_by_digest: dict[bytes, int] = {}
        self._digests_by_owner: dict[int, set[bytes]] = {}

    def begin(self, owner: int, prefixes: Iterable[Prefix]) -> None:
        """``owner`` will compute these blocks, unless somebody else does already."""
        for prefix in prefixes:
            if self._owner_by_digest.setdefault(prefix.digest, owner) == owner:
                self._digests_by_owner.setdefault(owner, set()).add(prefix.digest)

    def is_under_way(self, digest: bytes) -> bool:
        return digest in self._owner_by_digest

    def finish(self, owner: int, digest: bytes) -> None:
        """The block can be found now."""
        if self._owner_by_digest.get(digest) == owner:
            del self._owner_by_digest[digest]
            self._digests_by_owner[owner].discard(digest)

    def abandon(self, owner: int) -> None:
        """It will compute nothing more, or is done."""
        for digest in self._digests_by_owner.pop(owner, ()):
            del self._owner_by_digest[digest]

    def check_invariants(self, running: Iterable[int]) -> None:
        """Raises AssertionError."""
        assert set(self._owner_by_digest.values()) <= set(running), "nobody computes a block"
