"""The inner products of a linear over int8 activations: codes times codes, summed as integers.

A group of 32 inputs gives one exact integer per output; only then do scales come in, groups in
ascending order.  So a row's result does not depend on the rows beside it, to the bit, and codes
are unpacked once for all rows of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS, LinearSpecialization, WeightFormat
from kernels.quantize.formats import GROUP_BYTES, SCALE_OFFSET_BYTES, SUM_OFFSET_BYTES
from kernels.vector_ir.dot_product import (
    Operand,
    broadcast_quad,
    dot,
    operand,
    takes_whole_bytes,
)
from kernels.vector_ir.emitter import Emitter, Value

# Rows whose sums, [rows][32 columns] float32, stay in the first cache while groups pass.
_ROWS_PER_BLOCK: Final = 32
_ROW_BYTES: Final = 4 * TILE_COLUMNS
SCRATCH_BYTES: Final = _ROWS_PER_BLOCK * _ROW_BYTES
_NIBBLES: Final = 0x0F0F0F0F
_SIGN_BITS: Final = 0x80808080
_ZERO_POINT: Final = {WeightFormat.Q4_0: 8.0, WeightFormat.Q8_0: 128.0}


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of one vector of columns."""

    planes: Sequence[tuple[int, Sequence[Operand]]]  # (bits to shift the dot product by, codes)
    scale: Value
    offset: Value | None  # None: the codes have a zero point


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """One group of one row of x, in every lane."""

    quads: Sequence[Value]
    scale: Value
    code_sum: Value


def emit_integer_rows(
    e: Emitter,
    spec: LinearSpecialization,
    weights: Value,  # of the tile's first group
    x: Value,  # quantized rows
    x_stride: Value,  # bytes
    num_groups: Value,
    y: Value,  # float32, first row and first column of the tile
    y_stride: Value,  # bytes
    num_rows: Value,
    scratch: Value,  # SCRATCH_BYTES of this thread: sums of a block of rows
) -> None:
    with e.builder.if_else(e.builder.icmp_signed("==", num_rows, e.i64(1))) as (lone, several):
        with lone:
            _emit_lone_row(e, spec.weight_format, weights, x, num_groups, y)
        with several:
            _emit_blocks_of_rows(
                e, spec, weights, x, x_stride, num_groups, y, y_stride, num_rows, scratch
            )


def _emit_lone_row(
    e: Emitter, weight_format: WeightFormat, weights: Value, x: Value, num_groups: Value, y: Value
) -> None:
    """Sums stay in registers, and what is read of x serves the whole tile."""
    columns = range(0, TILE_COLUMNS, e.lanes)
    sums = e.variables([e.zero for _ in columns])
    with e.loop(num_groups) as group:
        address = e.at(weights, e.times(group, weight_format.group_bytes))
        row = _read_row(e, e.at(x, e.times(group, GROUP_BYTES)))
        e.prefetch_ahead(address, weight_format.group_bytes)
        for column, total in zip(columns, sums, strict=True):
            codes = _unpacked(e, weight_format, address, e.i64(column))
            e.set(total, _with_product(e, weight_format, codes, row, e.get(total)))
    for column, total in zip(columns, sums, strict=True):
        e.store_f32(e.get(total), y, 4 * column)


def _emit_blocks_of_rows(
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
    """Sums stay in the scratch until they are whole: rows of y may all fall on one cache set."""
    rounded = e.builder.add(num_rows, e.i64(_ROWS_PER_BLOCK - 1))
    with e.loop(e.builder.sdiv(rounded, e.i64(_ROWS_PER_BLOCK))) as block:
        first = e.times(block, _ROWS_PER_BLOCK)
        num_here = e.smaller(e.builder.sub(num_rows, first), e.i64(_ROWS_PER_BLOCK))
        x_block = e.at(x, e.builder.mul(first, x_stride))
        y_block = e.at(y, e.builder.mul(first, y_stride))
        with e.loop(e.times(num_here, TILE_COLUMNS // e.lanes)) as vector:
            e.store_f32(e.zero, scratch, e.times(vector, 4 * e.lanes))
        with e.loop(num_groups) as group:
            address = e.at(weights, e.times(group, spec.weight_format.group_bytes))
            x_group = e.at(x_block, e.times(group, GROUP_BYTES))
            e.prefetch_ahead(address, spec.weight_format.group_bytes)
            with e.loop(e.i64(TILE_COLUMNS // e.lanes)) as turn:
                codes = _unpacked(e, spec.weight_format, address, e.times(turn, e.lanes))
                sums = e.at(scratch, e.times(turn, 4 * e.lanes))
                with e.loop(num_here) as row:
                    x_row = _read_row(e, e.at(x_group, e.builder.mul(row, x_stride)))
                    target = e.at(sums, e.times(row, _ROW_BYTES))
                    before = e.load_f32(target)
                    total = _with_product(e, spec.weight_format, codes, x_row, before)
                    e.store_f32(total, target)
        with e.loop(num_here) as row:
            source = e.at(scratch, e.times(row, _ROW_BYTES))
            target = e.at(y_block, e.builder.mul(row, y_stride))
            for offset in range(0, _ROW_BYTES, 4 * e.lanes):
                e.store_f32(e.load_f32(source, offset), target, offset)


def _read_row(e: Emitter, x: Value) -> _RowGroup:
    return _RowGroup(
        quads=[broadcast_quad(e, x, offset) for offset in range(0, GROUP_SIZE, 4)],
        scale=e.broadcast(x, SCALE_OFFSET_BYTES),
        code_sum=e.broadcast(x, SUM_OFFSET_BYTES),
    )


def _with_product(
    e: Emitter, weight_format: WeightFormat, codes: _Group, x: _RowGroup, before: Value
) -> Value:
    """``before`` plus the product of one group."""
    total = e.constant_i32(0)
    for shift, operands in codes.planes:
        total = e.builder.add(total, e.shift_left(dot(e, operands, x.quads), shift))
    product = e.to_f32(total)
    if codes.offset is None:
        zero_point = e.constant(-_ZERO_POINT[weight_format])
        product = e.mul(e.fma(x.code_sum, zero_point, product), codes.scale)
    else:
        product = e.fma(product, codes.scale, e.mul(codes.offset, x.code_sum))
    return e.fma(product, x.scale, before)


def _unpacked(e: Emitter, weight_format: WeightFormat, group: Value, column: Value) -> _Group:
    halves = e.at(group, e.times(column, 2))
    codes = e.at(group, e.builder.add(e.times(column, 4), e.i64(weight_format.codes_offset_bytes)))
    num_words = GROUP_SIZE // (4 if weight_format is WeightFormat.Q8_0 else 8)
    words = [e.load_i32(codes, 4 * TILE_COLUMNS * word) for word in range(num_words)]
    is_q4_1 = weight_format is WeightFormat.Q4_1
    return _Group(
        planes=_planes(e, weight_format, words),
        scale=e.load_f16(halves),
        offset=e.load_f16(halves, 2 * TILE_COLUMNS) if is_q4_1 else None,
    )


def _planes(
    e: Emitter, weight_format: WeightFormat, words: Sequence[Value]
) -> list[tuple[int, list[Operand]]]:
    """A signed byte, plus 128, is two codes of four bits where whole bytes would overflow."""
    if weight_format is not WeightFormat.Q8_0:
        return [(0, [operand(e, half) for word in words for half in _nibbles(e, word)])]
    shifted = [e.builder.xor(word, e.constant_i32(_SIGN_BITS)) for word in words]
    if takes_whole_bytes(e.level):
        return [(0, [operand(e, word) for word in shifted])]
    low, high = zip(*(_nibbles(e, word) for word in shifted), strict=True)
    return [(4, [operand(e, word) for word in high]), (0, [operand(e, word) for word in low])]


def _nibbles(e: Emitter, word: Value) -> tuple[Value, Value]:
    """The even ones and the odd ones, as bytes."""
    return e.and_(word, _NIBBLES), e.and_(e.shift_right(word, 4), _NIBBLES)
