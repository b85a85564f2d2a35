"""What a cached block holds: the identity of a prefix that ends with a whole block.

Blocks are found by hash and taken only if what they hold is really the same, so that a collision
costs a lookup and never shows one prompt to another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contracts.prefix import block_hash, root_hash

HashBlock = Callable[[bytes, Sequence[int]], bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """All that decides the KV of its last block."""

    digest: bytes
    token_ids: tuple[int, ...]  # of the last block; empty for a root
    parent: "Prefix | None"  # None for a root
    identity: tuple[str | None, ...]  # everything besides tokens: equal along a chain
    hash_block: HashBlock

    def child(self, token_ids: Sequence[int]) -> "Prefix":
        digest = self.hash_block(self.digest, token_ids)
        return Prefix(digest, tuple(token_ids), self, self.identity, self.hash_block)

    def is_same(self, other: "Prefix") -> bool:
        """Equal tokens all the way up.  O(1) where the two chains have met."""
        if self.identity != other.identity:
            return False
        a: Prefix | None = self
        b: Prefix | None = other
        while a is not None and b is not None and a is not b:
            if a.token_ids != b.token_ids:
                return False
            a, b = a.parent, b.parent
        return a is b


@dataclass(frozen=True, slots=True)
class PrefixIdentity:
    """What decides a token's KV besides the tokens before it and their tenant."""

    model_revision: str
    kv_dtype: str
    hash_block: HashBlock = block_hash

    def root(self, cache_salt: str, adapter_digest: str | None = None) -> Prefix:
        """See ``contracts.prefix.root_hash``."""
        digest = root_hash(
            model_revision=self.model_revision,
            cache_salt=cache_salt,
            kv_dtype=self.kv_dtype,
            adapter_digest=adapter_digest,
        )
        identity = (self.model_revision, cache_salt, self.kv_dtype, adapter_digest)
        return Prefix(digest, (), None, identity, self.hash_block)
