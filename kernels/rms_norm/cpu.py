"""One row at a time; threads take rows."""

from typing import Any, Final

from kernels.quantize.cpu import quantize_groups
from kernels.quantize.formats import GROUP_BYTES, GROUP_SIZE
from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled, emitted
from kernels.vector_ir.specialization import Specialization

ROW_MULTIPLE: Final = 32  # elements; 32 running sums, in vectors, hide the adder's latency


def _emit_row(
    e: Emitter,
    _spec: Specialization,
    residual: Value,  # float32, becomes residual + delta
    delta: Value,  # 0: nothing to add
    weight: Value,
    y: Value,
    size: Value,
    eps: Value,
) -> None:
    with e.builder.if_then(e.builder.icmp_signed("!=", delta, e.i64(0))), e.offsets(size, 4) as o:
        total = e.add(e.load_f32(residual, o), e.load_f32(delta, o))
        e.store_f32(total, residual, o)
    mean = e.builder.fdiv(_emit_sum_of_squares(e, residual, size), e.builder.sitofp(size, eps.type))
    root = e.sqrt(e.builder.fadd(mean, eps))
    scale = e.splat(e.builder.fdiv(e.scalar(1.0), root))
    with e.offsets(size, 4) as o:
        normed = e.mul(e.load_f32(residual, o), scale)
        e.store_f32(e.mul(normed, e.load_f32(weight, o)), y, o)


def _emit_sum_of_squares(e: Emitter, row: Value, size: Value) -> Value:
    num_sums = ROW_MULTIPLE // e.lanes
    sums = e.variables([e.zero] * num_sums)
    with e.loop(e.builder.sdiv(size, e.i64(ROW_MULTIPLE))) as index:
        start = e.times(index, 4 * ROW_MULTIPLE)
        for number, variable in enumerate(sums):
            x = e.load_f32(e.at(row, start), 4 * e.lanes * number)
            e.set(variable, e.fma(x, x, e.get(variable)))
    totals = [e.get(variable) for variable in sums]
    while len(totals) > 1:
        half = len(totals) // 2
        totals = [e.add(a, b) for a, b in zip(totals[:half], totals[half:], strict=True)]
    return e.reduce(e.add, totals[0])


def _emit_row_sum(
    e: Emitter, _spec: Specialization, row: Value, size: Value, target: Value
) -> None:
    """Finite if and only if every element is, short of an overflow."""
    (total,) = e.variables([e.zero])
    with e.offsets(size, 4) as offset:
        e.set(total, e.add(e.load_f32(row, offset), e.get(total)))
    e.store_scalar(e.reduce(e.add, e.get(total)), target)


norm_row = emitted("norm_row", _emit_row)
row_sum = emitted("row_sum", _emit_row_sum)


@compiled
def add_rms_norm(
    spec: Any,
    num_threads: int,
    residual: int,  # address of float32 [num_rows, size]
    delta: int,  # the same, or 0
    weight: int,  # [size]
    y: int,  # [num_rows, size]
    codes: int,  # of y, quantized: [num_rows, size / 32, GROUP_BYTES]; 0: not wanted
    num_rows: int,
    size: int,
    eps: float,
    stage: int,  # of this call alone
) -> None:
    num_groups = size // GROUP_SIZE
    count = max(1, num_rows // (num_threads * SHARES_PER_THREAD))
    num_done = 0
    first = take(spec, stage, count)
    while first < num_rows:
        last = min(first + count, num_rows)
        for row in range(first, last):
            offset = row * size * 4
            row_delta = delta + offset if delta != 0 else 0
            norm_row(spec, residual + offset, row_delta, weight, y + offset, size, eps)
            if codes != 0:
                target = codes + row * num_groups * GROUP_BYTES
                quantize_groups(spec, y + offset, target, num_groups)
        num_done += last - first
        first = take(spec, stage, count)
    finish(spec, stage, num_done, num_rows)
