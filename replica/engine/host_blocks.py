"""Copies of blocks in host memory: so many and no more, and who finds no room computes again."""

from collections import Counter, deque
from collections.abc import Iterable, MutableSequence, Sequence

from replica.engine.kv_operations import CopyIn, CopyOut, KvOperation


class HostBlocks:
    """Only numbers: the operations say what moves."""

    def __init__(self, num_blocks: int, operations: MutableSequence[KvOperation]) -> None:
        """``operations``: shared with whoever frees blocks, for the order matters."""
        self._num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._operations = operations

    def save(self, blocks: Sequence[int]) -> list[int] | None:
        """Copies, which the caller restores from and discards.  None: too little room."""
        if len(blocks) > len(self._free):
            return None
        copies = [self._free.popleft() for _ in blocks]
        self._operations += map(CopyOut, blocks, copies)
        return copies

    def restore(self, copies: Sequence[int], blocks: Sequence[int]) -> None:
        """To blocks that the caller owns.  The copies stay."""
        self._operations += map(CopyIn, copies, blocks)

    def discard(self, copies: Sequence[int]) -> None:
        self._free += copies

    def check_invariants(self, saved: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless each block is free or one copy of these."""
        uses = Counter(self._free) + Counter(block for copies in saved for block in copies)
        assert uses == Counter(range(self._num_blocks)), "a host block is lost, or used twice"
