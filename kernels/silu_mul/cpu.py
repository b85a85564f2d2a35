"""Threads take columns where rows are few, rows otherwise: here, pieces of rows, always."""

from typing import Any, Final

from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled, emitted
from kernels.vector_ir.specialization import Specialization

COLUMN_MULTIPLE: Final = 32


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
    thread: int,
    num_threads: int,
    gate_up: int,  # address of float32 [num_rows, 2 * size]
    y: int,  # [num_rows, size]
    num_rows: int,
    size: int,
) -> None:
    """Work is cut in units of 32 columns, counted through all rows."""
    units_per_row = size // COLUMN_MULTIPLE
    unit = thread * num_rows * units_per_row // num_threads
    last = (thread + 1) * num_rows * units_per_row // num_threads
    while unit < last:
        row = unit // units_per_row
        end = min(last, (row + 1) * units_per_row)
        column = (unit - row * units_per_row) * COLUMN_MULTIPLE
        gate = gate_up + (row * 2 * size + column) * 4
        target = y + (row * size + column) * 4
        _piece(spec, gate, gate + size * 4, target, (end - unit) * COLUMN_MULTIPLE)
        unit = end
