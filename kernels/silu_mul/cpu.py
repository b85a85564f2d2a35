"""Threads take pieces of rows, so that they share a single row too."""

from typing import Any, Final

from kernels.quantize.cpu import quantize_groups
from kernels.quantize.formats import GROUP_BYTES, GROUP_SIZE
from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled, emitted
from kernels.vector_ir.specialization import Specialization

COLUMN_MULTIPLE: Final = GROUP_SIZE  # so that pieces can be quantized, too


def _emit_piece(
    e: Emitter, _spec: Specialization, gate: Value, up: Value, y: Value, size: Value
) -> None:
    """The exponential of -|gate| cannot overflow; the other sign follows from it."""
    one = e.constant(1.0)
    with e.offsets(size, 4) as offset:
        g = e.load_f32(gate, offset)
        decay = e.exp(e.builder.fneg(e.absolute(g)))
        of_positive = e.div(one, e.add(decay, one))
        is_negative = e.builder.fcmp_ordered("<", g, e.zero)
        sigmoid = e.builder.select(is_negative, e.mul(decay, of_positive), of_positive)
        e.store_f32(e.mul(e.mul(g, sigmoid), e.load_f32(up, offset)), y, offset)


_piece = emitted("silu_mul", _emit_piece)


@compiled
def silu_mul(
    spec: Any,
    num_threads: int,
    gate_up: int,  # address of float32 [num_rows, row_stride], of which 2 * size are read
    row_stride: int,  # elements
    y: int,  # [num_rows, size]
    codes: int,  # of y, quantized: [num_rows, size / 32, GROUP_BYTES]; 0: not wanted
    num_rows: int,
    size: int,
    stage: int,  # of this call alone
) -> None:
    """Work is cut in units of 32 columns, counted through all rows."""
    units_per_row = size // COLUMN_MULTIPLE
    num_units = num_rows * units_per_row
    count = max(1, num_units // (num_threads * SHARES_PER_THREAD))
    num_done = 0
    unit = take(spec, stage, count)
    while unit < num_units:
        last = min(unit + count, num_units)
        num_done += last - unit
        while unit < last:
            row = unit // units_per_row
            end = min(last, (row + 1) * units_per_row)
            column = (unit - row * units_per_row) * COLUMN_MULTIPLE
            gate = gate_up + (row * row_stride + column) * 4
            target = y + (row * size + column) * 4
            _piece(spec, gate, gate + size * 4, target, (end - unit) * COLUMN_MULTIPLE)
            if codes != 0:
                quantize_groups(spec, target, codes + unit * GROUP_BYTES, end - unit)
            unit = end
        unit = take(spec, stage, count)
    finish(spec, stage, num_done, num_units)
