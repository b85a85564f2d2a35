"""A step as flat lists: what the runner computes, free of sequences and of tensors.

All tokens of all sequences stand in one row of ``num_tokens``; a segment says which rows belong
to one sequence.  What there is one of per sequence and step is a struct, as in ``step``.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from replica.engine.block_manager import blocks_for
from replica.engine.kv_operations import KvOperation
from replica.engine.messages import SamplingParams
from replica.engine.step import NOT_FINITE, SampledToken, ScheduledChunk

_UNKNOWN_TOKEN = 0  # stands where a carried one will be put


class Segment(msgspec.Struct, frozen=True, gc=False):
    """``num_tokens`` rows from ``first_row`` on are one sequence's positions from ``start`` on."""

    first_row: int
    num_tokens: int
    start: int
    block_table: Sequence[int]  # covers start + num_tokens tokens; never changes
    adapter: int | None = None  # of those that were loaded

    @property
    def context_length(self) -> int:
        return self.start + self.num_tokens


class SeenTokens(msgspec.Struct, frozen=True, gc=False):
    """What a row's penalties count: these, and the row's own token, which may be carried."""

    before: "array[int]"  # all of the sequence before the row's own; a copy, which never changes
    num_prompt_tokens: int  # what lies behind them is the completion


class SampledRow(msgspec.Struct, frozen=True, gc=False):
    row: int
    params: SamplingParams
    position: int  # of the token to be drawn; with the seed, all its randomness
    is_eos_banned: bool
    seen: SeenTokens | None = None  # None: nothing is penalized


class CarriedToken(msgspec.Struct, frozen=True, gc=False):
    """``row`` computes the token that was decided for a segment of the batch before."""

    row: int
    segment: int


@dataclass(frozen=True, slots=True)
class FlatBatch:
    token_ids: Sequence[int]  # [num_tokens]
    positions: Sequence[int]  # [num_tokens]
    slots: Sequence[int]  # [num_tokens] block * block_size + offset: where each token's KV goes
    segments: Sequence[Segment]
    sampled_rows: Sequence[SampledRow]  # in the order of the chunks that are sampled
    kv_operations: Sequence[KvOperation] = ()  # carried out first, in this order
    carried_tokens: Sequence[CarriedToken] = ()  # none: all token ids are there

    @property
    def adapters(self) -> Sequence[int | None]:
        """[num_tokens] each row's."""
        return [segment.adapter for segment in self.segments for _ in range(segment.num_tokens)]


def flatten(
    chunks: Sequence[ScheduledChunk],
    block_size: int,
    kv_operations: Sequence[KvOperation] = (),
    segments_before: Mapping[int, int] = MappingProxyType({}),
) -> FlatBatch:
    """``segments_before``: where in the batch before, still in flight, each sequence id stands."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    segments: list[Segment] = []
    sampled_rows: list[SampledRow] = []
    carried_tokens: list[CarriedToken] = []
    for chunk in chunks:
        table, start, end = chunk.sequence.block_table, chunk.start, chunk.end
        if len(table) > blocks_for(end, block_size):  # hardly ever: it is not copied
            table = table[: blocks_for(end, block_size)]
        adapter = chunk.sequence.adapter
        segments.append(Segment(len(token_ids), end - start, start, table, adapter))
        token_ids += chunk.sequence.token_ids[start:end]
        positions += range(start, end)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(start, end)]
        if len(token_ids) < len(positions):  # its last token is being decided
            segment = segments_before[chunk.sequence.sequence_id]
            carried_tokens.append(CarriedToken(len(token_ids), segment))
            token_ids.append(_UNKNOWN_TOKEN)
        if chunk.is_sampled:
            sampled_rows.append(_sampled_row(chunk, len(token_ids) - 1))
    return FlatBatch(
        token_ids, positions, slots, segments, sampled_rows, kv_operations, carried_tokens
    )


def with_carried_tokens(batch: FlatBatch, decided: Sequence[SampledToken | None]) -> FlatBatch:
    """``decided``: by the batch before."""
    if not batch.carried_tokens:
        return batch
    token_ids = list(batch.token_ids)
    for carried in batch.carried_tokens:
        token = decided[carried.segment]
        assert token is not None, "a token was carried over from a segment that decided none"
        token_ids[carried.row] = token.token_id
    return replace(batch, token_ids=token_ids, carried_tokens=())


def results_of(
    batch: FlatBatch, is_finite_row: Sequence[bool], tokens: Mapping[int, SampledToken]
) -> list[SampledToken | None]:
    """What each segment decided, if all its rows are finite.  ``tokens``: by sampled row."""
    results: list[SampledToken | None] = []
    for segment in batch.segments:
        end = segment.first_row + segment.num_tokens
        is_finite = all(is_finite_row[segment.first_row : end])
        results.append(tokens.get(end - 1) if is_finite else NOT_FINITE)
    return results


def _sampled_row(chunk: ScheduledChunk, row: int) -> SampledRow:
    sequence = chunk.sequence
    num_completion_tokens = chunk.end - sequence.num_prompt_tokens
    is_eos_banned = num_completion_tokens < sequence.params.min_tokens
    seen = None
    if sequence.params.has_penalties:
        seen = SeenTokens(sequence.token_ids[: chunk.end - 1], sequence.num_prompt_tokens)
    return SampledRow(row, sequence.params, chunk.end, is_eos_banned, seen)
