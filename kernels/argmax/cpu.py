"""First the largest value, in vectors; then where it stands first."""

from typing import Any

from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled, emitted
from kernels.vector_ir.specialization import Specialization


def _emit_row(e: Emitter, _spec: Specialization, logits: Value, size: Value, index: Value) -> None:
    """index: address of an int64."""
    (largest,) = e.variables([e.constant(float("-inf"))])
    with e.offsets(size, 4) as offset:
        e.set(largest, e.maximum(e.load_f32(logits, offset), e.get(largest)))
    (tail,) = e.variables([e.reduce(e.larger, e.get(largest))])
    num_whole = e.times(e.builder.sdiv(size, e.i64(e.lanes)), e.lanes)
    with e.loop(size, start=num_whole) as place:
        e.set(tail, e.larger(e.load_scalar(logits, e.times(place, 4)), e.get(tail)))
    value = e.get(tail)
    (position,) = e.variables([e.i64(0)])
    builder = e.builder
    test = builder.append_basic_block("find.test")
    body = builder.append_basic_block("find.body")
    end = builder.append_basic_block("find.end")
    builder.branch(test)
    builder.position_at_end(test)
    current = e.get(position)
    candidate = e.load_scalar(logits, e.times(current, 4))
    is_last = builder.icmp_signed(">=", current, builder.sub(size, e.i64(1)))
    is_found = builder.or_(is_last, builder.fcmp_ordered("==", candidate, value))
    builder.cbranch(is_found, end, body)
    builder.position_at_end(body)
    e.set(position, builder.add(current, e.i64(1)))
    builder.branch(test)
    builder.position_at_end(end)
    e.store_scalar(e.get(position), index)


_row = emitted("argmax_row", _emit_row)


@compiled
def argmax(
    spec: Any,
    num_threads: int,
    logits: int,  # address of float32 [num_rows, row_stride]
    row_stride: int,  # elements
    vocab_size: int,
    num_rows: int,
    indices: int,  # address of int64 [num_rows]
    stage: int,  # of this call alone
) -> None:
    """A row without any number gives its last index: nothing here may loop for ever."""
    count = max(1, num_rows // (num_threads * SHARES_PER_THREAD))
    num_done = 0
    first = take(spec, stage, count)
    while first < num_rows:
        last = min(first + count, num_rows)
        for row in range(first, last):
            _row(spec, logits + row * row_stride * 4, vocab_size, indices + row * 8)
        num_done += last - first
        first = take(spec, stage, count)
    finish(spec, stage, num_done, num_rows)
