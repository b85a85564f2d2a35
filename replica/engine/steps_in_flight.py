"""Which steps may still write, and the blocks that nobody else may have until they are through.

A sequence can end, or be preempted, while a step that was launched for it is still being computed.
Its blocks are given back when that step has retired: whoever got them earlier would find another's
KV written into them.
"""

from collections.abc import Iterator, Sequence
from itertools import chain


class StepsInFlight:
    """Steps are numbered from 1 and retire in order."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._num_retired = 0
        self._held: list[tuple[int, Sequence[int]]] = []  # last step that may write, block table

    @property
    def held_tables(self) -> list[Sequence[int]]:
        return [table for _, table in self._held]

    @property
    def held_blocks(self) -> Iterator[int]:
        """Once per reference."""
        return chain.from_iterable(table for _, table in self._held)

    def begin(self) -> int:
        """The new step's number."""
        self._num_begun += 1
        return self._num_begun

    def may_write(self, step: int) -> bool:
        """Whether it has not retired yet."""
        return step > self._num_retired

    def hold(self, step: int, block_table: Sequence[int]) -> None:
        """Until this step has retired."""
        self._held.append((step, block_table))

    def retire(self) -> list[Sequence[int]]:
        """The earliest step is through; returns the tables that nobody writes any more."""
        assert self._num_retired < self._num_begun, "no step is in flight"
        self._num_retired += 1
        freed = [table for step, table in self._held if not self.may_write(step)]
        self._held = [(step, table) for step, table in self._held if self.may_write(step)]
        return freed
