"""The block tables of sequences: grown, shared and given back.

Decides nothing: who may grow and who gives way is the scheduler's business.  Blocks that a step in
flight may still write are held back until it has retired.
"""

import bisect
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as SequenceOf

from replica.engine.block_manager import BlockManager, blocks_for
from replica.engine.prefills_under_way import PrefillsUnderWay
from replica.engine.prefix import Prefix
from replica.engine.sequence import Sequence, block_table
from replica.engine.step import ScheduledChunk
from replica.engine.steps_in_flight import StepsInFlight


class BlockTables:
    def __init__(self, blocks: BlockManager, block_size: int, *, is_prefix_caching: bool) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._is_prefix_caching = is_prefix_caching
        self._in_flight = StepsInFlight()
        self._under_way = PrefillsUnderWay()

    def num_blocks(self, num_tokens: int) -> int:
        return blocks_for(num_tokens, self._block_size)

    def num_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks it lacks to compute so many tokens more; none: zero or less."""
        end = sequence.num_computed_tokens + num_tokens
        return self.num_blocks(end) - len(sequence.block_table)

    def num_free_soon(self, kept: Collection[int] = ()) -> int:
        """Blocks that are free, but for ``kept``, once the steps in flight have retired."""
        held = (block for block in self._in_flight.held_blocks if block not in kept)
        return self._blocks.num_free + self._blocks.num_freed_by(held)

    def grow(self, sequence: Sequence, num_blocks: int) -> None:
        """By blocks that the caller knows to be free."""
        blocks = [self._blocks.allocate() for _ in range(num_blocks)]
        sequence.block_table = sequence.block_table + block_table(blocks)

    def match(self, sequence: Sequence) -> list[int]:
        """Blocks that hold its beginning already.  To be adopted at once, or not at all.

        Nothing is hashed beyond the first one that is missing.
        """
        return self._blocks.match(self._prefixes(sequence, range(self._num_sharable(sequence))))

    def num_likely_cached(self, sequence: Sequence) -> int:
        """Blocks, found in O(log) lookups and not verified."""
        most = self._num_sharable(sequence)

        def is_missing(num_blocks: int) -> bool:
            prefix = sequence.block_prefix(num_blocks - 1, self._block_size)
            return not self._blocks.is_known(prefix)

        reach = 1
        while reach <= most and not is_missing(reach):
            reach *= 2  # tokens far beyond what is cached are not even hashed
        candidates = range(reach // 2 + 1, min(reach, most + 1))
        return reach // 2 + bisect.bisect_left(candidates, True, key=is_missing)

    def adopt(self, sequence: Sequence, cached: list[int]) -> None:
        """Its table begins with blocks that are there already."""
        self._blocks.acquire(cached)
        sequence.block_table = block_table(cached)
        sequence.num_published_blocks = len(cached)
        sequence.num_computed_tokens = len(cached) * self._block_size
        if self._is_prefix_caching:
            missing = range(len(cached), sequence.num_known_tokens // self._block_size)
            self._under_way.begin(sequence.sequence_id, self._prefixes(sequence, missing))

    def is_awaited_still(self, sequence: Sequence) -> bool:
        """What it waited for last time is not there yet: the cheap question."""
        digest = sequence.awaited_digest
        return digest is not None and self._under_way.is_under_way(digest)

    def is_computed_by_another(self, sequence: Sequence, num_cached_blocks: int) -> bool:
        """Somebody is computing the first block that is missing: soon it can be shared."""
        sequence.awaited_digest = None
        if num_cached_blocks >= self._num_sharable(sequence) or sequence.saved is not None:
            return False
        digest = sequence.block_prefix(num_cached_blocks, self._block_size).digest
        if self._under_way.is_under_way(digest):
            sequence.awaited_digest = digest
        return sequence.awaited_digest is not None

    def publish(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """What is full by now can be shared."""
        num_full = num_computed_tokens // self._block_size
        if num_full <= sequence.num_published_blocks or not self._is_prefix_caching:
            return
        for index in range(sequence.num_published_blocks, num_full):
            prefix = sequence.block_prefix(index, self._block_size)
            self._blocks.publish(sequence.block_table[index], prefix)
            self._under_way.finish(sequence.sequence_id, prefix.digest)
        sequence.num_published_blocks = num_full

    def release(self, sequence: Sequence) -> None:
        """At once, or when the last step that may write its blocks has retired."""
        table, sequence.block_table = sequence.block_table, block_table()
        sequence.num_releases += 1
        self._under_way.abandon(sequence.sequence_id)
        if self._in_flight.may_write(sequence.latest_step):
            self._in_flight.hold(sequence.latest_step, table)
        else:
            self._blocks.release(table)

    def begin_step(self, chunks: Iterable[ScheduledChunk]) -> None:
        """From here on what the step computes counts as computed, and its tables are written."""
        number = self._in_flight.begin()
        for chunk in chunks:
            chunk.sequence.latest_step = number
            chunk.sequence.num_computed_tokens = chunk.end
            chunk.sequence.num_awaited_tokens += chunk.is_sampled

    def retire_step(self) -> None:
        """The earliest step in flight is through: nothing more is written for it."""
        for table in self._in_flight.retire():
            self._blocks.release(table)

    def check_invariants(
        self, running: SequenceOf[Sequence], waiting: SequenceOf[Sequence]
    ) -> None:
        """Raises AssertionError."""
        tables = [sequence.block_table for sequence in running]
        self._blocks.check_invariants(tables + self._in_flight.held_tables)
        self._blocks.host.check_invariants(s.saved.copies for s in waiting if s.saved)
        self._under_way.check_invariants(s.sequence_id for s in running)
        assert not any(s.block_table for s in waiting), "a waiting sequence owns blocks"
        assert not any(s.saved for s in running), "a running sequence has copies"

    def _prefixes(self, sequence: Sequence, blocks: range) -> Iterator[Prefix]:
        return (sequence.block_prefix(index, self._block_size) for index in blocks)

    def _num_sharable(self, sequence: Sequence) -> int:
        """The last known token is always computed: its logits are what the step is for."""
        if not self._is_prefix_caching:
            return 0
        return (sequence.num_known_tokens - 1) // self._block_size
