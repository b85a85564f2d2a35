"""Which replicas hold which blocks of KV cache, as their events tell.

A block's key is the first 64 bits of its hash.  For each there is one number: a bit for every
replica that holds it, and below them the 64 bits of its parent's key.  Replicas never hold a block
without its parent, so whoever holds a block holds all before it.

A replica whose cache is gone gets another bit; the old one's blocks are swept out by and by.
"""

from collections.abc import Iterator
from typing import Final

_KEY_DIGITS: Final = 16
_KEY_BITS: Final = 64
_KEY_MASK: Final = (1 << _KEY_BITS) - 1

Bit = int  # a power of two


def block_key(hex_hash: str) -> int:
    return int(hex_hash[:_KEY_DIGITS], 16)


class BlockIndex:
    def __init__(self, max_blocks: int) -> None:
        """Of more than ``max_blocks`` nothing is learned until some are gone."""
        self._max_blocks = max_blocks
        self._entries: dict[int, int] = {}
        self._used = 0  # bits
        self._retired = 0  # bits whose blocks have not all been swept out
        self._sweep: Iterator[int] | None = None
        self._sweeping = 0  # bits that were retired when the sweep began
        self.num_refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self) -> Bit:
        """For a replica that holds nothing yet."""
        taken = self._used | self._retired
        bit = ~taken & (taken + 1)  # the lowest that is free
        self._used |= bit
        return bit

    def retire(self, bit: Bit) -> None:
        """It holds nothing any more."""
        self._used &= ~bit
        self._retired |= bit

    def store(self, bit: Bit, key: int, parent: int) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries[key] = entry | bit << _KEY_BITS
        elif len(self._entries) < self._max_blocks:
            self._entries[key] = bit << _KEY_BITS | parent
        else:
            self.num_refused += 1

    def remove(self, bit: Bit, key: int) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry &= ~(bit << _KEY_BITS)
        if entry >> _KEY_BITS:
            self._entries[key] = entry
        else:
            del self._entries[key]

    def holders(self, key: int) -> int:
        """The bits of those that hold it."""
        return (self._entries.get(key, 0) >> _KEY_BITS) & ~self._retired

    def parent(self, key: int) -> int | None:
        """``None``: the block is not known."""
        entry = self._entries.get(key)
        return None if entry is None else entry & _KEY_MASK

    def sweep(self, max_blocks: int) -> None:
        """Goes on taking retired bits out of so many blocks; to be called now and then."""
        if self._sweep is None:
            if not self._retired:
                return
            self._sweep, self._sweeping = iter(list(self._entries)), self._retired
        for _ in range(max_blocks):
            key = next(self._sweep, None)
            if key is None:
                self._retired &= ~self._sweeping
                self._sweep = None
                return
            self.remove(self._sweeping, key)
