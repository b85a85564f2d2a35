"""One chunk of keys against a few rows, in three passes: scores, softmax, weighted values.

A row is one query head at one position.  Its result is the same sequence of operations whether it
stands in a decode step or in a chunk of prefill, so recomputing a context gives the same bits:
chunks start at multiples of CHUNK_KEYS positions, a score is a chain over head_dim, and the values
are added in the order of their positions.  Keys a row must not see have weight zero; blocks beyond
the context are not read, and the tail of the last block is not multiplied, whatever it holds.

Rows live in a scratch area, see ``row_states``.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from kernels.paged_attention.formats import CHUNK_KEYS, AttentionSpecialization, KvFormat
from kernels.paged_attention.row_states import MASKED, Layout, layout_of
from kernels.vector_ir.emitter import I32, I64, Emitter, Value
from kernels.vector_ir.function import emitted

_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Chunk:
    keys: Value  # address of the head in block 0
    values: Value
    blocks: Value  # address of the int32 numbers of the chunk's blocks
    block_stride: Value  # bytes
    num_keys: Value  # read: the most that any row sees
    state: Value
    scores: Value  # work area


def emit_chunk(
    e: Emitter,
    spec: AttentionSpecialization,
    keys: Value,
    values: Value,
    blocks: Value,
    block_stride: Value,
    num_keys: Value,
    state: Value,
    work: Value,
    *,
    is_decode: bool,
) -> None:
    layout = layout_of(spec, is_decode=is_decode)
    chunk = _Chunk(keys, values, blocks, block_stride, num_keys, state, work)
    _emit_scores(e, spec, layout, chunk)
    _emit_softmax(e, spec, layout, chunk)
    _emit_weighted_values(e, spec, layout, chunk)


def _emit_scores(e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk) -> None:
    block_size, element_bytes = spec.block_size, spec.kv_format.element_bytes
    num_vectors = block_size // e.lanes
    step = max(1, e.level.num_accumulators // num_vectors)
    with _blocks(e, spec, chunk) as (index, base):
        keys, values = e.at(chunk.keys, base), e.at(chunk.values, base)
        target = e.at(chunk.scores, e.times(index, 4 * block_size))
        for first in range(0, at.num_rows, step):
            rows = range(first, min(first + step, at.num_rows))
            slots = [(row, v) for row in rows for v in range(num_vectors)]
            sums = e.variables([e.zero] * len(slots))
            with e.loop(e.i64(spec.head_dim)) as dimension:
                offset = e.times(dimension, block_size * element_bytes)
                place = e.at(keys, offset)
                if first == 0:
                    e.prefetch_far(values, offset)  # of this chunk: the last of the three passes
                vectors = [_load(e, spec, place, v) for v in range(num_vectors)]
                query = e.at(chunk.state, e.times(dimension, 4 * at.num_rows))
                scalars = {row: e.broadcast(query, 4 * row) for row in rows}
                for (row, v), variable in zip(slots, sums, strict=True):
                    e.set(variable, e.fma(vectors[v], scalars[row], e.get(variable)))
            scales = _scales(e, spec, keys)
            for (row, v), variable in zip(slots, sums, strict=True):
                score = e.mul(e.get(variable), scales[v]) if scales else e.get(variable)
                e.store_f32(score, target, 4 * (row * CHUNK_KEYS + v * e.lanes))


def _emit_softmax(e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk) -> None:
    """Scores become weights relative to the highest score so far; sums fade accordingly.

    In two passes with the scores in memory between them: all of a row's would not fit the registers
    of AVX2 beside what an exponential needs.  The rows' factors are one exponential of vectors.
    """
    with e.builder.if_else(_is_all_seen(e, spec, at, chunk)) as (whole, part):
        with whole:
            _emit_highest(e, at, chunk, partial(_highest_of_all, e))
        with part:
            _emit_highest(e, at, chunk, partial(_mask_and_highest, e, spec, at, chunk))
    factors = 4 * at.num_rows * CHUNK_KEYS
    for offset in range(factors, factors + 4 * at.num_rows, 4 * e.lanes):
        e.store_f32(e.exp(e.load_f32(chunk.scores, offset)), chunk.scores, offset)
    with e.builder.if_else(_is_all_seen(e, spec, at, chunk)) as (whole, part):
        with whole:
            _emit_weights(e, at, chunk, partial(_weights_of_all, e))
        with part:
            _emit_weights(e, at, chunk, partial(_weights_of_seen, e, spec, at, chunk))


def _is_all_seen(e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk) -> Value:
    """By every row: the first sees the least of what comes last, the last of what comes first."""
    limit = e.load_scalar(chunk.state, at.limits, I32)
    is_seen = e.builder.icmp_signed(">=", limit, I32(CHUNK_KEYS))
    if not spec.has_window:
        return is_seen
    start = e.load_scalar(chunk.state, at.starts + 4 * (at.num_rows - 1), I32)
    return e.builder.and_(is_seen, e.builder.icmp_signed("<=", start, I32(0)))


def _emit_highest(
    e: Emitter, at: Layout, chunk: _Chunk, highest_of: Callable[[Value, Value], Value]
) -> None:
    """highest_of: (index of a row, address of its scores) -> highest score of each lane."""
    with e.loop(e.i64(at.num_rows)) as row:
        scores = e.at(chunk.scores, e.times(row, 4 * CHUNK_KEYS))
        state = e.at(chunk.state, e.times(row, 4))
        before = e.load_scalar(state, at.largest)
        largest = e.larger(e.reduce(e.larger, highest_of(row, scores)), before)
        e.store_scalar(largest, state, at.largest)
        factor = e.at(chunk.scores, e.times(row, 4))
        e.store_scalar(e.builder.fsub(before, largest), factor, 4 * at.num_rows * CHUNK_KEYS)


def _emit_weights(
    e: Emitter, at: Layout, chunk: _Chunk, weigh: Callable[[Value, Value, Value], Value]
) -> None:
    """weigh: (index of a row, address of its scores, its highest) -> sum of each lane's weights."""
    with e.loop(e.i64(at.num_rows)) as row:
        scores = e.at(chunk.scores, e.times(row, 4 * CHUNK_KEYS))
        state = e.at(chunk.state, e.times(row, 4))
        factor = e.load_scalar(e.at(chunk.scores, e.times(row, 4)), 4 * at.num_rows * CHUNK_KEYS)
        total = weigh(row, scores, e.broadcast(state, at.largest))
        faded = e.builder.fmul(e.load_scalar(state, at.totals), factor)
        e.store_scalar(e.builder.fadd(faded, e.reduce(e.add, total)), state, at.totals)


def _highest_of_all(e: Emitter, _row: Value, scores: Value) -> Value:
    offsets = range(0, 4 * CHUNK_KEYS, 4 * e.lanes)
    return functools.reduce(e.maximum, [e.load_f32(scores, offset) for offset in offsets])


def _weights_of_all(e: Emitter, _row: Value, scores: Value, largest: Value) -> Value:
    total = e.zero
    for offset in range(0, 4 * CHUNK_KEYS, 4 * e.lanes):
        weights = e.exp(e.sub(e.load_f32(scores, offset), largest))
        e.store_f32(weights, scores, offset)
        total = e.add(total, weights)
    return total


def _mask_and_highest(
    e: Emitter,
    spec: AttentionSpecialization,
    at: Layout,
    chunk: _Chunk,
    row: Value,
    scores: Value,
) -> Value:
    """Scores of keys that are not seen become very low."""
    seen = _seen_by(e, spec, at, chunk, row)
    (highest,) = e.variables([e.constant(MASKED)])
    with e.loop(_num_vectors(e, chunk)) as index:
        place = e.at(scores, e.times(index, 4 * e.lanes))
        first = e.builder.trunc(e.times(index, e.lanes), I32)
        masked = seen.keep(e, e.load_f32(place), first, MASKED)
        e.store_f32(masked, place)
        e.set(highest, e.maximum(masked, e.get(highest)))
    return e.get(highest)


def _weights_of_seen(
    e: Emitter,
    spec: AttentionSpecialization,
    at: Layout,
    chunk: _Chunk,
    row: Value,
    scores: Value,
    largest: Value,
) -> Value:
    seen = _seen_by(e, spec, at, chunk, row)
    (total,) = e.variables([e.zero])
    with e.loop(_num_vectors(e, chunk)) as index:
        place = e.at(scores, e.times(index, 4 * e.lanes))
        first = e.builder.trunc(e.times(index, e.lanes), I32)
        weights = seen.keep(e, e.exp(e.sub(e.load_f32(place), largest)), first, 0.0)
        e.store_f32(weights, place)
        e.set(total, e.add(e.get(total), weights))
    return e.get(total)


def _num_vectors(e: Emitter, chunk: _Chunk) -> Value:
    """Of the keys that are read."""
    return e.builder.sdiv(e.builder.add(chunk.num_keys, e.i64(e.lanes - 1)), e.i64(e.lanes))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Which keys of a chunk a row sees, int32."""

    limit: Value
    start: Value | None  # None: from the first on

    def keep(self, e: Emitter, vector: Value, first: Value, fill: float) -> Value:
        """vector: of keys from ``first`` (int32) on."""
        kept = e.keep_below(e.builder.sub(self.limit, first), vector, fill)
        if self.start is None:
            return kept
        return e.keep_from(e.builder.sub(self.start, first), kept, fill)


def _seen_by(
    e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk, row: Value
) -> _Seen:
    state = e.at(chunk.state, e.times(row, 4))
    limit = e.load_scalar(state, at.limits, I32)
    return _Seen(limit, e.load_scalar(state, at.starts, I32) if spec.has_window else None)


def _emit_weighted_values(
    e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk
) -> None:
    num_vectors = _vectors_at_once(spec.head_dim // e.lanes)
    step = max(1, e.level.num_accumulators // num_vectors)
    for first_vector in range(0, spec.head_dim // e.lanes, num_vectors):
        vectors = range(first_vector, first_vector + num_vectors)
        for first in range(0, at.num_rows, step):
            rows = range(first, min(first + step, at.num_rows))
            slots = [(row, v) for row in rows for v in vectors]
            _emit_weighted_part(e, spec, at, chunk, slots, is_first=first == first_vector == 0)


def _emit_weighted_part(
    e: Emitter,
    spec: AttentionSpecialization,
    at: Layout,
    chunk: _Chunk,
    slots: list[tuple[int, int]],
    *,
    is_first: bool,  # of the parts: fetches ahead for all
) -> None:
    rows, vectors = sorted({row for row, _ in slots}), sorted({v for _, v in slots})
    factors_offset = 4 * at.num_rows * CHUNK_KEYS
    factors = {row: e.broadcast(chunk.scores, factors_offset + 4 * row) for row in rows}
    offsets = [at.sums + 4 * (row * spec.head_dim + v * e.lanes) for row, v in slots]
    sums = e.variables(
        [
            e.mul(e.load_f32(chunk.state, offset), factors[row])
            for (row, _), offset in zip(slots, offsets, strict=True)
        ]
    )
    with _blocks(e, spec, chunk) as (index, base):
        first_key = e.times(index, spec.block_size)
        num_left = e.builder.sub(chunk.num_keys, first_key)
        with e.loop(e.smaller(num_left, e.i64(spec.block_size))) as key:
            row_bytes = spec.head_dim * spec.kv_format.element_bytes
            block = e.at(chunk.values, base)
            place = e.at(block, e.times(key, row_bytes))
            if is_first:
                soon = e.at(chunk.keys, _base_in_next_chunk(e, spec, chunk, index))
                for line in range(0, row_bytes, _LINE_BYTES):
                    e.prefetch_far(e.at(soon, e.times(key, row_bytes)), line)
            weights = e.at(chunk.scores, e.times(e.builder.add(first_key, key), 4))
            scalars = {row: e.broadcast(weights, 4 * CHUNK_KEYS * row) for row in rows}
            if spec.kv_format is KvFormat.INT8:
                scale = e.broadcast(e.at(block, e.times(key, 4)), spec.scales_offset_bytes)
                scalars = {row: e.mul(scalar, scale) for row, scalar in scalars.items()}
            for v in vectors:  # one at a time: with all at once, AVX2 runs out of registers
                loaded = _load(e, spec, place, v)
                for row in rows:
                    variable = sums[slots.index((row, v))]
                    e.set(variable, e.fma(loaded, scalars[row], e.get(variable)))
    for offset, variable in zip(offsets, sums, strict=True):
        e.store_f32(e.get(variable), chunk.state, offset)


@contextmanager
def _blocks(
    e: Emitter, spec: AttentionSpecialization, chunk: _Chunk
) -> Iterator[tuple[Value, Value]]:
    """(index in the chunk, byte offset in the cache) of each block that is read."""
    size = e.i64(spec.block_size)
    rounded = e.builder.add(chunk.num_keys, e.i64(spec.block_size - 1))
    with e.loop(e.builder.sdiv(rounded, size)) as index:
        block = e.load_scalar(chunk.blocks, e.times(index, 4), I32)
        yield index, e.builder.mul(e.builder.sext(block, I64), chunk.block_stride)


def _base_in_next_chunk(
    e: Emitter, spec: AttentionSpecialization, chunk: _Chunk, index: Value
) -> Value:
    """Of the block at the same place; each table ends with as many entries as a chunk has.

    Blocks lie far apart, where no hardware would fetch ahead.
    """
    place = e.at(e.times(index, 4), CHUNK_KEYS // spec.block_size * 4)
    block = e.load_scalar(chunk.blocks, place, I32)
    return e.builder.mul(e.builder.sext(block, I64), chunk.block_stride)


def _load(e: Emitter, spec: AttentionSpecialization, address: Value, vector: int) -> Value:
    offset = spec.kv_format.element_bytes * e.lanes * vector
    if spec.kv_format is KvFormat.BFLOAT16:
        return e.load_bf16(address, offset)
    if spec.kv_format is KvFormat.INT8:
        return e.load_signed_bytes(address, offset)
    return e.load_f32(address, offset)


def _scales(e: Emitter, spec: AttentionSpecialization, block: Value) -> list[Value]:
    """Of all tokens of a block's head; empty where elements are what they are."""
    if spec.kv_format is not KvFormat.INT8:
        return []
    lanes = range(0, spec.block_size, e.lanes)
    return [e.load_f32(block, spec.scales_offset_bytes + 4 * lane) for lane in lanes]


def _vectors_at_once(num_vectors: int) -> int:
    return next(n for n in (4, 3, 2, 1) if num_vectors % n == 0)


attend_decode_chunk = emitted("attend_decode_chunk", partial(emit_chunk, is_decode=True))
attend_tile_chunk = emitted("attend_tile_chunk", partial(emit_chunk, is_decode=False))
