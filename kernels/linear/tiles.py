"""The inner products of a linear: a few rows of x times a few columns of one weight tile.

Every output is one chain of fused multiply-adds in ascending k, whatever the number of rows, the
number of columns done at once, and whether weights were unpacked in place or beforehand: a row's
result does not depend on which rows stand beside it, to the bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kernels.linear.formats import (
    GROUP_SIZE,
    TILE_COLUMNS,
    ActivationFormat,
    LinearSpecialization,
    WeightFormat,
    nibble_k,
)
from kernels.linear.integer_tiles import emit_integer_rows
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import constant_of, emitted
from kernels.vector_ir.levels import FeatureLevel

_F32_BYTES = 4


def columns_at_once(level: FeatureLevel, num_rows: int) -> int:
    """As many as the registers hold beside ``num_rows`` rows' accumulators."""
    vectors = TILE_COLUMNS // level.lanes
    while vectors * num_rows > level.num_accumulators:
        vectors //= 2
    return vectors * level.lanes


def full_rows(level: FeatureLevel) -> int:
    """Rows of the largest tile: two vectors of columns share each load of x."""
    return level.num_accumulators // 2


def weight_vectors(
    e: Emitter, weight_format: WeightFormat, group: Value, column: Value, num_vectors: int
) -> Iterator[tuple[int, list[Value]]]:
    """(k, float32 weights of ``num_vectors`` vectors of columns from ``column`` on), k ascending.

    Written to be consumed as it is produced: nothing is kept but scales and the current words.
    """
    codes = e.at(group, e.builder.add(e.times(column, 4), e.i64(weight_format.codes_offset_bytes)))
    halves = e.at(group, e.times(column, 2))
    vectors = range(num_vectors)
    if weight_format is WeightFormat.FLOAT32:
        for k in range(GROUP_SIZE):
            yield k, [e.load_f32(codes, 128 * k + 4 * e.lanes * v) for v in vectors]
    elif weight_format is WeightFormat.BFLOAT16:
        for k in range(GROUP_SIZE):
            yield k, [e.load_bf16(halves, 64 * k + 2 * e.lanes * v) for v in vectors]
    elif weight_format is WeightFormat.Q8_0:
        yield from _q8_0_vectors(e, codes, halves, num_vectors)
    else:
        yield from _q4_vectors(e, weight_format, codes, halves, num_vectors)


def _q8_0_vectors(
    e: Emitter, codes: Value, halves: Value, num_vectors: int
) -> Iterator[tuple[int, list[Value]]]:
    unshift = e.constant(2.0**-24)  # codes come 2^24 times too large; both factors are exact
    scales = [e.mul(e.load_f16(halves, 2 * e.lanes * v), unshift) for v in range(num_vectors)]
    for word in range(GROUP_SIZE // 4):
        words = [e.load_i32(codes, 128 * word + 4 * e.lanes * v) for v in range(num_vectors)]
        for byte in range(4):
            yield (
                4 * word + byte,
                [
                    e.mul(e.signed_byte_to_f32(w, byte), scale)
                    for w, scale in zip(words, scales, strict=True)
                ],
            )


def _q4_vectors(
    e: Emitter, weight_format: WeightFormat, codes: Value, halves: Value, num_vectors: int
) -> Iterator[tuple[int, list[Value]]]:
    scales = [e.load_f16(halves, 2 * e.lanes * v) for v in range(num_vectors)]
    if weight_format is WeightFormat.Q4_1:
        offsets = [e.load_f16(halves, 64 + 2 * e.lanes * v) for v in range(num_vectors)]
    else:
        offsets = [e.mul(scale, e.constant(-8.0)) for scale in scales]
    powers = {e.nibble_power(nibble) for nibble in range(8)}
    scales_by_power = {  # exact, as their products with the codes are
        power: [e.mul(scale, e.constant(2.0**-power)) for scale in scales] if power else scales
        for power in sorted(powers)
    }
    for word in range(GROUP_SIZE // 8):
        words = [e.load_i32(codes, 128 * word + 4 * e.lanes * v) for v in range(num_vectors)]
        for nibble in sorted(range(8), key=lambda n: nibble_k(0, n)):
            own_scales = scales_by_power[e.nibble_power(nibble)]
            yield (
                nibble_k(word, nibble),
                [
                    e.fma(e.nibble_to_f32(w, nibble), scale, offset)
                    for w, scale, offset in zip(words, own_scales, offsets, strict=True)
                ],
            )


def emit_rows(
    e: Emitter,
    spec: LinearSpecialization,
    weights: Value,  # of the tile's first group
    x: Value,  # float32, first row and first k of the groups
    x_stride: Value,  # bytes
    num_groups: Value,
    y: Value,  # float32, first row and first column of the tile
    y_stride: Value,  # bytes
    num_rows: Value,
    is_continued: Value,  # 1: add to what y holds; 0: start from zero
    *,
    is_unpacked: bool,  # the weights are float32 already
) -> None:
    """All rows against one tile: as many at once as the registers hold, then the rest."""
    weight_format = WeightFormat.FLOAT32 if is_unpacked else spec.weight_format
    first = e.i64(0)
    for rows in (full_rows(e.level), 4, 2, 1):
        columns = columns_at_once(e.level, rows)
        count = e.builder.sdiv(e.builder.sub(num_rows, first), e.i64(rows))
        with e.loop(count) as index:
            row = e.builder.add(first, e.times(index, rows))
            x_row = e.at(x, e.builder.mul(row, x_stride))
            y_row = e.at(y, e.builder.mul(row, y_stride))
            with e.loop(e.i64(TILE_COLUMNS // columns)) as turn:
                column = e.times(turn, columns)
                operands = _Operands(
                    weights=weights,
                    column=column,
                    x=x_row,
                    x_stride=x_stride,
                    num_groups=num_groups,
                    y=e.at(y_row, e.times(column, _F32_BYTES)),
                    y_stride=y_stride,
                    is_continued=e.builder.icmp_signed("!=", is_continued, e.i64(0)),
                )
                _emit_product(e, weight_format, operands, rows, columns // e.lanes)
        first = e.builder.add(first, e.times(count, rows))


@dataclass(frozen=True, slots=True)
class _Operands:
    weights: Value
    column: Value  # of the tile: first of those done here
    x: Value
    x_stride: Value
    num_groups: Value
    y: Value  # at ``column``
    y_stride: Value
    is_continued: Value


def _emit_product(
    e: Emitter, weight_format: WeightFormat, at: _Operands, num_rows: int, num_vectors: int
) -> None:
    slots = [(row, v) for row in range(num_rows) for v in range(num_vectors)]
    x_rows = [e.at(at.x, e.times(at.x_stride, row)) for row in range(num_rows)]
    targets = [
        e.at(at.y, e.builder.add(e.times(at.y_stride, row), e.i64(4 * e.lanes * v)))
        for row, v in slots
    ]
    sums = e.variables(
        [e.builder.select(at.is_continued, e.load_f32(target), e.zero) for target in targets]
    )
    with e.loop(at.num_groups) as group:
        address = e.at(at.weights, e.times(group, weight_format.group_bytes))
        if num_vectors * e.lanes == TILE_COLUMNS:  # few rows: nothing is read twice
            e.prefetch_ahead(address, weight_format.group_bytes)
        offset = e.times(group, GROUP_SIZE * _F32_BYTES)
        x_group = [e.at(row, offset) for row in x_rows]
        totals = [e.get(s) for s in sums]
        for k, vectors in weight_vectors(e, weight_format, address, at.column, num_vectors):
            scalars = [e.broadcast(row, _F32_BYTES * k) for row in x_group]
            totals = [
                e.fma(vectors[v], scalars[row], total)
                for (row, v), total in zip(slots, totals, strict=True)
            ]
        for variable, total in zip(sums, totals, strict=True):
            e.set(variable, total)
    for target, variable in zip(targets, sums, strict=True):
        e.store_f32(e.get(variable), target)


def _emit_unpack(
    e: Emitter, spec: LinearSpecialization, weights: Value, scratch: Value, num_groups: Value
) -> None:
    """Groups of a tile as float32 [k][32 columns]."""
    num_vectors = min(TILE_COLUMNS // e.lanes, 4)
    with e.loop(num_groups) as group:
        address = e.at(weights, e.times(group, spec.weight_format.group_bytes))
        target = e.at(scratch, e.times(group, WeightFormat.FLOAT32.group_bytes))
        e.prefetch_ahead(address, spec.weight_format.group_bytes)
        for column in range(0, TILE_COLUMNS, num_vectors * e.lanes):
            start = e.i64(column)
            for k, vectors in weight_vectors(e, spec.weight_format, address, start, num_vectors):
                for v, vector in enumerate(vectors):
                    e.store_f32(vector, target, 128 * k + 4 * (column + e.lanes * v))


def emit_direct_rows(
    e: Emitter,
    spec: LinearSpecialization,
    weights: Value,
    x: Value,
    x_stride: Value,
    num_groups: Value,
    y: Value,
    y_stride: Value,
    num_rows: Value,
    scratch: Value,
) -> None:
    """All rows against one tile of weights as they are packed."""
    operands = (weights, x, x_stride, num_groups, y, y_stride, num_rows)
    if spec.activation_format is ActivationFormat.INT8:
        emit_integer_rows(e, spec, *operands, scratch)
    else:
        emit_rows(e, spec, *operands, e.i64(0), is_unpacked=False)


direct_rows = emitted("direct_rows", emit_direct_rows)
unpacked_rows = emitted("unpacked_rows", partial(emit_rows, is_unpacked=True))
unpack_groups = emitted("unpack_groups", _emit_unpack)
group_bytes = constant_of("group_bytes", lambda spec: spec.weight_format.group_bytes)
