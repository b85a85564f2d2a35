"""What one step computes, and what it decides."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from replica.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Compute ``num_tokens`` tokens of a sequence from ``start`` on."""

    sequence: Sequence
    start: int
    num_tokens: int
    is_sampled: bool  # it reaches the last known token: its last row decides the next one
    block_table: SequenceOf[int]  # the sequence's own, which may still grow

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_void(self) -> bool:
        """The sequence has given its blocks up since: what came out concerns nobody any more."""
        return self.block_table is not self.sequence.block_table


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    is_finite: bool  # False: the numbers behind it were not, and the sequence must fail


class StepPlan:
    """The chunks of one step and what is left of its budget."""

    def __init__(self, max_num_tokens: int) -> None:
        self.num_free_tokens = max_num_tokens
        self._chunks: dict[int, ScheduledChunk] = {}

    def put(self, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed_tokens
        self._chunks[sequence.sequence_id] = ScheduledChunk(
            sequence,
            start,
            num_tokens,
            is_sampled=num_tokens == sequence.num_missing_tokens,
            block_table=sequence.block_table,
        )
        self.num_free_tokens -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        chunk = self._chunks.pop(sequence.sequence_id, None)
        if chunk is not None:
            self.num_free_tokens += chunk.num_tokens

    def chunks(self) -> list[ScheduledChunk]:
        return list(self._chunks.values())
