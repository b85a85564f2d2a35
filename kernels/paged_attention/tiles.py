"""One chunk of keys against a few rows, in three passes: scores, softmax, weighted values.

A row is one query head at one position.  Its result is the same sequence of operations whether it
stands in a decode step or in a chunk of prefill, so recomputing a context gives the same bits:
chunks start at multiples of CHUNK_KEYS positions, a score is a chain over head_dim, and the values
are added in the order of their positions.  Keys a row must not see have weight zero; blocks beyond
the context are not read, and the tail of the last block is not multiplied, whatever it holds.

Rows live in a scratch area, float32, ``Layout`` says where.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from kernels.paged_attention.formats import CHUNK_KEYS, AttentionSpecialization, KvFormat
from kernels.vector_ir.emitter import I32, I64, Emitter, Value
from kernels.vector_ir.function import emitted

_MASKED = -1e30
_ROWS_AIMED_AT = 12


def rows_of_decode(spec: AttentionSpecialization) -> int:
    return spec.group_size


def tokens_of_tile(spec: AttentionSpecialization) -> int:
    """Positions of one tile of prefill: enough rows to share each load of keys and values."""
    return max(1, _ROWS_AIMED_AT // spec.group_size)


def rows_of_tile(spec: AttentionSpecialization) -> int:
    return tokens_of_tile(spec) * spec.group_size


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets of a tile's state: queries [head_dim][rows], sums [rows][head_dim], ..."""

    num_rows: int
    head_dim: int

    @property
    def sums(self) -> int:
        return 4 * self.num_rows * self.head_dim

    @property
    def largest(self) -> int:  # [rows] highest score so far
        return 2 * self.sums

    @property
    def totals(self) -> int:  # [rows] sum of weights so far
        return self.largest + 4 * self.num_rows

    @property
    def limits(self) -> int:  # int32 [rows] keys of the current chunk that the row sees
        return self.totals + 4 * self.num_rows

    @property
    def size_bytes(self) -> int:
        return -(-(self.limits + 4 * self.num_rows) // 64) * 64

    @property
    def work_bytes(self) -> int:
        """Scores [rows][CHUNK_KEYS], then [rows] factors; shared by the tiles of a thread."""
        return -(-4 * self.num_rows * (CHUNK_KEYS + 1) // 64) * 64


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
    num_rows = rows_of_decode(spec) if is_decode else rows_of_tile(spec)
    layout = Layout(num_rows, spec.head_dim)
    chunk = _Chunk(keys, values, blocks, block_stride, num_keys, state, work)
    _emit_scores(e, spec, layout, chunk)
    _emit_softmax(e, layout, chunk)
    _emit_weighted_values(e, spec, layout, chunk)


def _emit_scores(e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk) -> None:
    block_size, element_bytes = spec.block_size, spec.kv_format.element_bytes
    num_vectors = block_size // e.lanes
    step = max(1, e.level.num_accumulators // num_vectors)
    with _blocks(e, spec, chunk) as (index, base):
        keys = e.at(chunk.keys, base)
        after = _base_after(e, chunk, index)
        soon = [e.at(chunk.values, after), e.at(chunk.keys, after)]
        target = e.at(chunk.scores, e.times(index, 4 * block_size))
        for first in range(0, at.num_rows, step):
            rows = range(first, min(first + step, at.num_rows))
            slots = [(row, v) for row in rows for v in range(num_vectors)]
            sums = e.variables([e.zero] * len(slots))
            with e.loop(e.i64(spec.head_dim)) as dimension:
                offset = e.times(dimension, block_size * element_bytes)
                place = e.at(keys, offset)
                for address in soon if first == 0 else []:
                    e.prefetch(address, offset)
                vectors = [_load(e, spec, place, v) for v in range(num_vectors)]
                query = e.at(chunk.state, e.times(dimension, 4 * at.num_rows))
                scalars = {row: e.broadcast(query, 4 * row) for row in rows}
                for (row, v), variable in zip(slots, sums, strict=True):
                    e.set(variable, e.fma(vectors[v], scalars[row], e.get(variable)))
            scales = _scales(e, spec, keys)
            for (row, v), variable in zip(slots, sums, strict=True):
                score = e.mul(e.get(variable), scales[v]) if scales else e.get(variable)
                e.store_f32(score, target, 4 * (row * CHUNK_KEYS + v * e.lanes))


def _emit_softmax(e: Emitter, at: Layout, chunk: _Chunk) -> None:
    """Scores become weights relative to the highest score so far; sums fade accordingly."""
    offsets = range(0, 4 * CHUNK_KEYS, 4 * e.lanes)
    with e.loop(e.i64(at.num_rows)) as row:
        scores = e.at(chunk.scores, e.times(row, 4 * CHUNK_KEYS))
        state = e.at(chunk.state, e.times(row, 4))
        limit = e.load_scalar(state, at.limits, I32)
        counts = [e.builder.sub(limit, I32(offset // 4)) for offset in offsets]
        masked = [
            e.keep_below(count, e.load_f32(scores, offset), _MASKED)
            for count, offset in zip(counts, offsets, strict=True)
        ]
        highest = masked[0]
        for vector in masked[1:]:
            highest = e.maximum(vector, highest)
        before = e.load_scalar(state, at.largest)
        largest = e.larger(e.reduce(e.larger, highest), before)
        weights = [
            e.keep_below(count, e.exp(e.sub(vector, e.splat(largest))), 0.0)
            for count, vector in zip(counts, masked, strict=True)
        ]
        total = weights[0]
        for vector in weights[1:]:
            total = e.add(total, vector)
        factor = e.extract(e.exp(e.splat(e.builder.fsub(before, largest))), 0)
        faded = e.builder.fmul(e.load_scalar(state, at.totals), factor)
        e.store_scalar(largest, state, at.largest)
        e.store_scalar(e.builder.fadd(faded, e.reduce(e.add, total)), state, at.totals)
        for vector, offset in zip(weights, offsets, strict=True):
            e.store_f32(vector, scores, offset)
        e.store_scalar(factor, e.at(chunk.scores, e.times(row, 4)), 4 * at.num_rows * CHUNK_KEYS)


def _emit_weighted_values(
    e: Emitter, spec: AttentionSpecialization, at: Layout, chunk: _Chunk
) -> None:
    num_vectors = _vectors_at_once(spec.head_dim // e.lanes)
    step = max(1, e.level.num_accumulators // num_vectors)
    for first_vector in range(0, spec.head_dim // e.lanes, num_vectors):
        vectors = range(first_vector, first_vector + num_vectors)
        for first in range(0, at.num_rows, step):
            rows = range(first, min(first + step, at.num_rows))
            _emit_weighted_part(e, spec, at, chunk, [(row, v) for row in rows for v in vectors])


def _emit_weighted_part(
    e: Emitter,
    spec: AttentionSpecialization,
    at: Layout,
    chunk: _Chunk,
    slots: list[tuple[int, int]],
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
            loaded = {v: _load(e, spec, place, v) for v in vectors}
            weights = e.at(chunk.scores, e.times(e.builder.add(first_key, key), 4))
            scalars = {row: e.broadcast(weights, 4 * CHUNK_KEYS * row) for row in rows}
            if spec.kv_format is KvFormat.INT8:
                scale = e.broadcast(e.at(block, e.times(key, 4)), spec.scales_offset_bytes)
                scalars = {row: e.mul(scalar, scale) for row, scalar in scalars.items()}
            for (row, v), variable in zip(slots, sums, strict=True):
                e.set(variable, e.fma(loaded[v], scalars[row], e.get(variable)))
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


def _base_after(e: Emitter, chunk: _Chunk, index: Value) -> Value:
    """Of the block after; each table ends with one entry more than it has blocks.

    Blocks lie far apart, where no hardware would fetch ahead.
    """
    block = e.load_scalar(chunk.blocks, e.at(e.times(index, 4), 4), I32)
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


def _emit_start(
    e: Emitter,
    spec: AttentionSpecialization,
    query: Value,  # address of the first head of a group
    state: Value,
    first_row: Value,
    num_rows: Value,
) -> None:
    """Queries, scaled and transposed, and empty sums, for the heads of one token."""
    scale = e.constant(spec.head_dim**-0.5)
    row_bytes = 4 * spec.head_dim
    dimension_bytes = e.times(num_rows, 4)
    sums = e.at(state, e.builder.mul(num_rows, e.i64(row_bytes)))
    largest = e.at(sums, e.builder.mul(num_rows, e.i64(row_bytes)))
    for head in range(spec.group_size):
        row = e.builder.add(first_row, e.i64(head))
        for v in range(spec.head_dim // e.lanes):
            offset = 4 * e.lanes * v
            scaled = e.mul(e.load_f32(query, head * row_bytes + offset), scale)
            column = e.at(state, e.times(row, 4))
            for lane in range(e.lanes):
                dimension = e.builder.mul(dimension_bytes, e.i64(v * e.lanes + lane))
                e.store_scalar(e.extract(scaled, lane), e.at(column, dimension))
            e.store_f32(e.zero, e.at(sums, e.times(row, row_bytes)), offset)
        e.store_scalar(e.scalar(_MASKED), e.at(largest, e.times(row, 4)))
        e.store_scalar(e.scalar(0.0), e.at(e.at(largest, dimension_bytes), e.times(row, 4)))


def _emit_finish(
    e: Emitter,
    spec: AttentionSpecialization,
    state: Value,
    first_row: Value,
    num_rows: Value,
    output: Value,  # address of the first head of a group
) -> None:
    row_bytes = 4 * spec.head_dim
    sums = e.at(state, e.builder.mul(num_rows, e.i64(row_bytes)))
    totals = e.at(e.at(sums, e.builder.mul(num_rows, e.i64(row_bytes))), e.times(num_rows, 4))
    for head in range(spec.group_size):
        row = e.builder.add(first_row, e.i64(head))
        total = e.load_scalar(totals, e.times(row, 4))
        inverse = e.splat(e.builder.fdiv(e.scalar(1.0), total))
        source = e.at(sums, e.times(row, row_bytes))
        for v in range(spec.head_dim // e.lanes):
            offset = 4 * e.lanes * v
            e.store_f32(
                e.mul(e.load_f32(source, offset), inverse), output, head * row_bytes + offset
            )


def _emit_limits(e: Emitter, spec: AttentionSpecialization, limits: Value, limit: Value) -> None:
    """The same for each head of a token."""
    for head in range(spec.group_size):
        e.store_scalar(e.builder.trunc(limit, I32), limits, 4 * head)


set_limits = emitted("set_limits", _emit_limits)
attend_decode_chunk = emitted("attend_decode_chunk", partial(emit_chunk, is_decode=True))
attend_tile_chunk = emitted("attend_tile_chunk", partial(emit_chunk, is_decode=False))
start_token = emitted("start_token", _emit_start)
finish_token = emitted("finish_token", _emit_finish)
