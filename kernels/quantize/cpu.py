"""A group at a time; threads take rows."""

from collections.abc import Sequence
from typing import Any

from kernels.quantize.formats import (
    GROUP_BYTES,
    GROUP_SIZE,
    LARGEST_CODE,
    SCALE_OFFSET_BYTES,
    SUM_OFFSET_BYTES,
)
from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.emitter import F32, Emitter, Value
from kernels.vector_ir.function import compiled, emitted
from kernels.vector_ir.specialization import Specialization


def scale_and_inverse(e: Emitter, vectors: Sequence[Value]) -> tuple[Value, Value]:
    """The scale, a float32, and what ``codes_of`` wants.

    A number that is not finite makes the scale not finite, and so all that is computed with it.
    """
    largest, total = e.absolute(vectors[0]), vectors[0]
    for vector in vectors[1:]:
        largest = e.maximum(e.absolute(vector), largest)
        total = e.add(total, vector)
    bound = e.reduce(e.larger, largest)
    trace = e.builder.fmul(e.reduce(e.add, total), e.scalar(0.0))
    scale = e.builder.fadd(e.builder.fmul(bound, e.scalar(1.0 / LARGEST_CODE)), trace)
    is_zero = e.builder.fcmp_ordered("==", bound, e.scalar(0.0))
    inverse = e.builder.fdiv(e.scalar(LARGEST_CODE), bound)
    return scale, e.splat(e.builder.select(is_zero, e.scalar(0.0), inverse))


def codes_of(e: Emitter, vector: Value, inverse: Value) -> Value:
    """int32 lanes, -127 to 127."""
    return e.to_i32(e.round(e.mul(vector, inverse)))


def _emit_groups(
    e: Emitter, _spec: Specialization, source: Value, target: Value, num_groups: Value
) -> None:
    with e.loop(num_groups) as group:
        x = e.at(source, e.times(group, 4 * GROUP_SIZE))
        place = e.at(target, e.times(group, GROUP_BYTES))
        vectors = [e.load_f32(x, 4 * offset) for offset in range(0, GROUP_SIZE, e.lanes)]
        scale, inverse = scale_and_inverse(e, vectors)
        sums = e.constant_i32(0)
        for index, vector in enumerate(vectors):
            codes = codes_of(e, vector, inverse)
            sums = e.builder.add(sums, codes)
            e.store_vector(e.to_bytes(codes), place, index * e.lanes)
        e.store_scalar(scale, place, SCALE_OFFSET_BYTES)
        total = e.builder.sitofp(e.reduce(e.builder.add, sums), F32)
        e.store_scalar(total, place, SUM_OFFSET_BYTES)


quantize_groups = emitted("quantize_groups", _emit_groups)


@compiled
def quantize(
    spec: Any,
    num_threads: int,
    x: int,  # address of float32 [num_rows, num_groups * 32]
    codes: int,  # address of [num_rows, num_groups, GROUP_BYTES]
    num_rows: int,
    num_groups: int,
    stage: int,  # of this call alone
) -> None:
    count = max(1, num_rows // (num_threads * SHARES_PER_THREAD))
    num_done = 0
    first = take(spec, stage, count)
    while first < num_rows:
        last = min(first + count, num_rows)
        source = x + first * num_groups * GROUP_SIZE * 4
        target = codes + first * num_groups * GROUP_BYTES
        quantize_groups(spec, source, target, (last - first) * num_groups)
        num_done += last - first
        first = take(spec, stage, count)
    finish(spec, stage, num_done, num_rows)
