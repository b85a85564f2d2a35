"""A step as flat lists: what the runner computes, free of sequences and of tensors.

All tokens of all sequences stand in one row of ``num_tokens``; a segment says which rows belong
to one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from replica.engine.kv_operations import KvOperation
from replica.engine.messages import SamplingParams
from replica.engine.scheduler import ScheduledChunk


@dataclass(frozen=True, slots=True)
class Segment:
    """``num_tokens`` rows from ``first_row`` on are one sequence's positions from ``start`` on."""

    first_row: int
    num_tokens: int
    start: int
    block_table: tuple[int, ...]  # covers start + num_tokens tokens

    @property
    def context_length(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class SampledRow:
    row: int
    params: SamplingParams
    position: int  # of the token to be drawn; with the seed, all its randomness
    is_eos_banned: bool


@dataclass(frozen=True, slots=True)
class FlatBatch:
    token_ids: Sequence[int]  # [num_tokens]
    positions: Sequence[int]  # [num_tokens]
    slots: Sequence[int]  # [num_tokens] block * block_size + offset: where each token's KV goes
    segments: Sequence[Segment]
    sampled_rows: Sequence[SampledRow]  # in the order of the chunks that are sampled
    kv_operations: Sequence[KvOperation] = ()  # carried out first, in this order


def flatten(
    chunks: Sequence[ScheduledChunk], block_size: int, kv_operations: Sequence[KvOperation] = ()
) -> FlatBatch:
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    segments: list[Segment] = []
    sampled_rows: list[SampledRow] = []
    for chunk in chunks:
        table = chunk.sequence.block_table
        end = chunk.start + chunk.num_tokens
        num_blocks = -(-end // block_size)
        segments.append(
            Segment(len(token_ids), chunk.num_tokens, chunk.start, tuple(table[:num_blocks]))
        )
        token_ids += chunk.sequence.token_ids[chunk.start : end]
        positions += range(chunk.start, end)
        slots += (
            table[p // block_size] * block_size + p % block_size for p in range(chunk.start, end)
        )
        if chunk.is_sampled:
            sampled_rows.append(_sampled_row(chunk, len(token_ids) - 1))
    return FlatBatch(token_ids, positions, slots, segments, sampled_rows, kv_operations)


def _sampled_row(chunk: ScheduledChunk, row: int) -> SampledRow:
    sequence = chunk.sequence
    return SampledRow(
        row=row,
        params=sequence.params,
        position=sequence.num_known_tokens,
        is_eos_banned=sequence.num_completion_tokens < sequence.params.min_tokens,
    )
