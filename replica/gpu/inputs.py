"""From the flat lists of a batch to numbers that a device can be sent.  No device here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replica.engine.batch import FlatBatch, SampledRow, Segment
from replica.engine.block_manager import NULL_BLOCK
from replica.engine.sampler import biases_of, is_greedy, uniform

Integers = npt.NDArray[np.int64]

NO_ADAPTER: Final = -1
_NULL_SLOT: Final = NULL_BLOCK  # the first of the null block: where padding rows write


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Padded to ``num_rows`` rows and ``num_seqs`` sequences: of one token, at position 0."""

    token_ids: Integers  # [num_rows]
    positions: Integers  # [num_rows]
    slots: Integers  # [num_rows]
    adapter_ids: Integers  # [num_rows]; NO_ADAPTER where there is none
    query_starts: npt.NDArray[np.int32]  # [num_seqs + 1]
    context_lengths: npt.NDArray[np.int32]  # [num_seqs]
    block_tables: npt.NDArray[np.int32]  # [num_seqs, width]
    max_query_tokens: int
    max_context: int


def host_inputs(batch: FlatBatch) -> HostInputs:
    segments = batch.segments
    return HostInputs(
        token_ids=np.array(batch.token_ids, np.int64),
        positions=np.array(batch.positions, np.int64),
        slots=np.array(batch.slots, np.int64),
        adapter_ids=np.array([NO_ADAPTER if a is None else a for a in batch.adapters], np.int64),
        query_starts=np.array([*(s.first_row for s in segments), len(batch.token_ids)], np.int32),
        context_lengths=np.array([s.context_length for s in segments], np.int32),
        block_tables=_tables(segments, max((len(s.block_table) for s in segments), default=1)),
        max_query_tokens=max((s.num_tokens for s in segments), default=0),
        max_context=max((s.context_length for s in segments), default=0),
    )


def padded_decodes(batch: FlatBatch, num_seqs: int, width: int) -> HostInputs:
    """All segments are of one token.  Behind them stand rows whose keys and values nobody reads."""
    num_padding = num_seqs - len(batch.segments)
    rows = host_inputs(batch)
    return HostInputs(
        token_ids=np.pad(rows.token_ids, (0, num_padding)),
        positions=np.pad(rows.positions, (0, num_padding)),
        slots=np.pad(rows.slots, (0, num_padding), constant_values=_NULL_SLOT),
        adapter_ids=np.pad(rows.adapter_ids, (0, num_padding), constant_values=NO_ADAPTER),
        query_starts=np.arange(num_seqs + 1, dtype=np.int32),
        context_lengths=np.pad(rows.context_lengths, (0, num_padding), constant_values=1),
        block_tables=np.concatenate(
            [_tables(batch.segments, width), np.full((num_padding, width), NULL_BLOCK, np.int32)]
        ),
        max_query_tokens=1,
        max_context=rows.max_context,
    )


def is_decode_only(batch: FlatBatch) -> bool:
    return bool(batch.segments) and all(s.num_tokens == 1 for s in batch.segments)


def _tables(segments: Sequence[Segment], width: int) -> npt.NDArray[np.int32]:
    tables = np.full((len(segments), width), NULL_BLOCK, np.int32)
    for row, segment in zip(tables, segments, strict=True):
        row[: len(segment.block_table)] = segment.block_table
    return tables


@dataclass(frozen=True, slots=True)
class HostDraws:
    """How the sampled rows' tokens are drawn; see ``kernels.sampling.rows_reference.Draws``."""

    rows: Integers  # [num_sampled] of the batch
    segments: Integers  # [num_sampled] whose they are
    settings: npt.NDArray[np.float64]  # [4, num_sampled]: temperature, top_p, min_p, uniform
    top_ks: npt.NDArray[np.int32]  # [num_sampled]
    are_greedy: bool
    biased: Integers  # [2, num_biases]: sampled row and token
    biases: npt.NDArray[np.float32]  # [num_biases] added to those
    penalties: "HostPenalties | None"  # None: no row has any
    asking: Integers  # [num_asking] sampled rows that want logprobs
    num_top_logprobs: int  # the most that one of them wants


def host_draws(batch: FlatBatch, eos_token_ids: Sequence[int]) -> HostDraws:
    sampled = batch.sampled_rows
    segment_of_row = {s.first_row + s.num_tokens - 1: i for i, s in enumerate(batch.segments)}
    biases = [
        (index, token, bias)
        for index, row in enumerate(sampled)
        for token, bias in biases_of(row, eos_token_ids).items()
    ]
    wanted = {
        index: num_top
        for index, row in enumerate(sampled)
        if (num_top := row.params.num_top_logprobs) is not None
    }
    return HostDraws(
        rows=np.array([row.row for row in sampled], np.int64),
        segments=np.array([segment_of_row[row.row] for row in sampled], np.int64),
        settings=np.array([_settings(row) for row in sampled], np.float64).reshape(-1, 4).T.copy(),
        top_ks=np.array([row.params.top_k for row in sampled], np.int32),
        are_greedy=all(is_greedy(row.params) for row in sampled),
        biased=np.array([place for *place, _ in biases], np.int64).reshape(-1, 2).T.copy(),
        biases=np.array([bias for *_, bias in biases], np.float32),
        penalties=_penalties(sampled),
        asking=np.array([*wanted], np.int64),
        num_top_logprobs=max(wanted.values(), default=0),
    )


@dataclass(frozen=True, slots=True)
class HostPenalties:
    """Of those sampled rows that have any.

    Each row's own token is in neither: only the device may know it.  Of a prompt, whose blocks in
    the cache many may share, a row sends a vocabulary at most; of a completion, which has blocks of
    its own, all.  Each token is 16 bytes.
    """

    rows: Integers  # [num_penalized] sampled rows
    prompt: Integers  # [2, num_tokens]: place and token, once each; of rows with repetition
    completion: Integers  # likewise, of all, and as often as they were seen
    is_own_in_prompt: npt.NDArray[np.bool_]  # [num_penalized]
    strengths: npt.NDArray[np.float32]  # [3, num_penalized]: repetition, presence, frequency


def _penalties(sampled: Sequence[SampledRow]) -> HostPenalties | None:
    rows = [
        (index, row.params, seen)
        for index, row in enumerate(sampled)
        if (seen := row.seen) is not None
    ]
    if not rows:
        return None
    before = [np.asarray(seen.before, np.int64) for _, _, seen in rows]
    nums = [seen.num_prompt_tokens for _, _, seen in rows]
    repeats = [params.repetition_penalty != 1.0 for _, params, _ in rows]
    strengths = [
        (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        for _, params, _ in rows
    ]
    return HostPenalties(
        rows=np.array([index for index, _, _ in rows], np.int64),
        prompt=_placed(
            [
                _once(t[:n]) if asks else t[:0]
                for t, n, asks in zip(before, nums, repeats, strict=True)
            ]
        ),
        completion=_placed([tokens[num:] for tokens, num in zip(before, nums, strict=True)]),
        is_own_in_prompt=np.array([len(t) < n for t, n in zip(before, nums, strict=True)]),
        strengths=np.array(strengths, np.float32).T.copy(),
    )


def _once(tokens: Integers) -> Integers:
    """In order; without a sort, which a long prompt would wait for in each step."""
    is_there = np.zeros(int(tokens.max(initial=-1)) + 1, np.bool_)
    is_there[tokens] = True
    return np.flatnonzero(is_there)


def _placed(tokens: Sequence[Integers]) -> Integers:
    """[2, all of them]: whose each is, and it."""
    places = np.repeat(np.arange(len(tokens)), [len(each) for each in tokens])
    return np.stack([places, np.concatenate(tokens)])


def _settings(row: SampledRow) -> tuple[float, float, float, float]:
    params = row.params
    if is_greedy(params):
        return 0.0, params.top_p, params.min_p, 0.0  # nothing is hashed for what is not drawn
    return params.temperature, params.top_p, params.min_p, uniform(params.seed, row.position)


def carried(batch: FlatBatch) -> tuple[Integers, Integers]:
    """(rows, and the segments of the batch before whose tokens they compute)."""
    pairs: Any = [(token.row, token.segment) for token in batch.carried_tokens]
    rows, segments = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    return rows, segments
