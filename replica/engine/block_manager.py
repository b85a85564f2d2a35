"""Blocks of KV cache: who owns them, which are free, and which can be shared by content.

A block is **owned** (referenced by at least one block table), **cached** (free, but its content is
known and can be revived) or **free**.  Only full blocks are ever shared, so nothing is ever
copied on write.  Block 0 is the null block: padding reads and writes go there and it belongs to
nobody.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from replica.engine.host_blocks import HostBlocks
from replica.engine.kv_operations import KvOperation, Vacate
from replica.engine.messages import BlockChange, BlockRemoved, BlocksCleared, BlockStored
from replica.engine.prefix import Prefix

NULL_BLOCK = 0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-num_tokens // block_size)


class BlockManager:
    """All operations are O(1) per block."""

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """``num_blocks`` includes the null block."""
        if num_blocks < 2:
            raise ValueError(
                f"expected at least 2 blocks (one is the null block), got {num_blocks}"
            )
        self._ref_counts = [0] * num_blocks
        self._contents: list[Prefix | None] = [None] * num_blocks
        self._block_by_digest: dict[bytes, int] = {}
        self._children: dict[bytes, set[int]] = {}  # known ones, by their parent's digest
        self._changes: list[BlockChange] = []
        self._operations: list[KvOperation] = []
        self.host = HostBlocks(num_host_blocks, self._operations)
        # In order of reuse: blocks without known content first, then cached ones, least recently
        # used first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_usable(self) -> int:
        return len(self._ref_counts) - 1

    @property
    def num_free(self) -> int:
        """Free or cached: what can be handed out."""
        return len(self._free)

    @property
    def contents(self) -> dict[Prefix, int]:
        """Every findable prefix and its block."""
        return {p: block for block, p in enumerate(self._contents) if p is not None}

    def match(self, prefixes: Iterable[Prefix]) -> list[int]:
        """Blocks of the longest known chain.  They are not yet held: ``acquire`` them at once."""
        blocks: list[int] = []
        parent: Prefix | None = None
        for prefix in prefixes:
            block = self._block_by_digest.get(prefix.digest)
            content = None if block is None else self._contents[block]
            if block is None or content is None or not _holds(content, prefix, parent):
                break
            blocks.append(block)
            parent = content
        return blocks

    def num_unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` an ``acquire`` would take out of the free list."""
        return sum(self._ref_counts[block] == 0 for block in blocks)

    def num_sole(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` one owner's ``release`` would put into the free list."""
        return sum(self._ref_counts[block] == 1 for block in blocks)

    def num_freed_by(self, references: Iterable[int]) -> int:
        """How many blocks giving up all these references would put into the free list."""
        counts = Counter(references)
        return sum(self._ref_counts[block] == count for block, count in counts.items())

    def acquire(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def allocate(self) -> int:
        """The block unused for longest.  The caller has checked ``num_free``."""
        block, _ = self._free.popitem(last=False)
        self.forget(block)
        self._ref_counts[block] = 1
        return block

    def publish(self, block: int, prefix: Prefix) -> None:
        """Make a full block findable, if its parent is.

        If equal content is known already, that copy stays the known one while somebody owns it.
        """
        if self._contents[block] is not None or not self._is_reachable(prefix):
            return
        known = self._block_by_digest.get(prefix.digest)
        if known is None:
            self._learn(block, prefix)
            self._changes.append(
                BlockStored(prefix.digest, _parent(prefix).digest, len(prefix.token_ids))
            )
        elif self._ref_counts[known] == 0 and prefix.is_same(self._content(known)):
            self._unlearn(known)
            self._learn(block, prefix)

    def is_known(self, prefix: Prefix) -> bool:
        """Only a hint: hashes may collide."""
        return prefix.digest in self._block_by_digest

    def forget(self, block: int) -> None:
        """Make a block's content unfindable, and what hangs on it: nobody could reach that."""
        family = [block] if self._contents[block] is not None else []
        for member in family:  # grows meanwhile
            family += self._children.get(self._content(member).digest, ())
        for member in reversed(family):
            self._changes.append(BlockRemoved(self._content(member).digest))
            self._unlearn(member)

    def clear(self) -> None:
        """Make everything unfindable.  Blocks stay with their owners."""
        for block in self.contents.values():
            self._unlearn(block)
        self._changes.append(BlocksCleared())

    def take_changes(self) -> list[BlockChange]:
        """Of what can be found, since it was last called."""
        changes, self._changes = self._changes, []
        return changes

    def take_operations(self) -> list[KvOperation]:
        """To carry out before anything is written to a block, since it was last called."""
        operations = self._operations.copy()
        self._operations.clear()
        return operations

    def release(self, block_table: Sequence[int]) -> None:
        """Give up one reference to each block.

        Tails become reusable before the prefixes they hang on.
        """
        for block in reversed(block_table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            self._free[block] = None
            if self._contents[block] is None:
                self._vacate(block)

    def check_invariants(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless every block is free, cached or owned by these tables."""
        owners = Counter(block for table in block_tables for block in table)
        assert NULL_BLOCK not in owners, "the null block is owned"
        assert NULL_BLOCK not in self._free, "the null block is free"
        for block, count in enumerate(self._ref_counts):
            assert count == owners[block], (
                f"block {block}: {count} references, {owners[block]} owners"
            )
            if block != NULL_BLOCK:
                assert (count == 0) == (block in self._free), f"block {block} is free and owned"
        for digest, block in self._block_by_digest.items():
            content = self._contents[block]
            assert content is not None, f"block {block} is known and holds nothing"
            assert content.digest == digest, f"block {block} is known by another hash"
        assert len(self.contents) == len(self._block_by_digest), "a block's hash is not indexed"
        assert all(map(self._is_reachable, self.contents)), "a block outlived its parent"
        children = {block for blocks in self._children.values() for block in blocks}
        assert children == set(self.contents.values()), "a known block is nobody's child"

    def _is_reachable(self, prefix: Prefix) -> bool:
        parent = _parent(prefix)
        return parent.parent is None or self.is_known(parent)

    def _content(self, block: int) -> Prefix:
        content = self._contents[block]
        assert content is not None, f"block {block} holds nothing known"
        return content

    def _learn(self, block: int, prefix: Prefix) -> None:
        self._contents[block] = prefix
        self._block_by_digest[prefix.digest] = block
        self._children.setdefault(_parent(prefix).digest, set()).add(block)

    def _unlearn(self, block: int) -> None:
        content = self._content(block)
        self._contents[block] = None
        del self._block_by_digest[content.digest]
        siblings = self._children[_parent(content).digest]
        siblings.remove(block)
        if not siblings:
            del self._children[_parent(content).digest]
        if self._ref_counts[block] == 0:
            self._vacate(block)

    def _vacate(self, block: int) -> None:
        """It has neither owner nor known content: it is reused first."""
        self._operations.append(Vacate(block))
        if block in self._free:  # not while it is being allocated
            self._free.move_to_end(block, last=False)


def _parent(prefix: Prefix) -> Prefix:
    assert prefix.parent is not None, "a root is no block"
    return prefix.parent


def _holds(content: Prefix, prefix: Prefix, matched_parent: Prefix | None) -> bool:
    """Whether ``content`` is ``prefix``, whose parent has been found equal already."""
    if matched_parent is not None and content.parent is matched_parent:
        return content.token_ids == prefix.token_ids
    return content.is_same(prefix)
