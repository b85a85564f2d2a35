"""A barrier and a shared counter for threads inside one compiled function.

Kept in memory the caller owns, all zeros at first: the barrier's count of arrivals and, a cache
line further, its generation.  A waiting thread spins for tens of microseconds, which is longer than
any stage of a step is uneven, then gives its core away again and again: where cores are shared, the
thread it waits for may need that core.
"""

from typing import Any, Final

from llvmlite import ir

from kernels.vector_ir.emitter import I32, I64, Emitter, Value
from kernels.vector_ir.function import emitted, emitted_value
from kernels.vector_ir.specialization import Specialization

BARRIER_BYTES: Final = 128
_GENERATION_OFFSET_BYTES: Final = 64
_NUM_SPINS: Final = 1 << 11


def _emit_wait(e: Emitter, _spec: Specialization, barrier: Value, num_threads: Value) -> None:
    builder = e.builder
    arrivals = builder.inttoptr(barrier, I64.as_pointer())
    generation = builder.inttoptr(e.at(barrier, _GENERATION_OFFSET_BYTES), I64.as_pointer())
    current = builder.load_atomic(generation, "acquire", 8)
    num_before = builder.atomic_rmw("add", arrivals, e.i64(1), "acq_rel")
    is_last = builder.icmp_signed("==", num_before, builder.sub(num_threads, e.i64(1)))
    with builder.if_else(is_last) as (last, others):
        with last:
            builder.store_atomic(e.i64(0), arrivals, "monotonic", 8)
            builder.store_atomic(builder.add(current, e.i64(1)), generation, "release", 8)
        with others:
            _emit_spin(e, generation, current)


def _emit_spin(e: Emitter, generation: Value, current: Value) -> None:
    builder = e.builder
    (num_spins,) = e.variables([e.i64(0)])
    test = builder.append_basic_block("spin.test")
    body = builder.append_basic_block("spin.body")
    end = builder.append_basic_block("spin.end")
    builder.branch(test)
    builder.position_at_end(test)
    is_open = builder.icmp_signed("!=", builder.load_atomic(generation, "acquire", 8), current)
    builder.cbranch(is_open, end, body)
    builder.position_at_end(body)
    spins = builder.add(e.get(num_spins), e.i64(1))
    e.set(num_spins, spins)
    with builder.if_else(builder.icmp_signed("<", spins, e.i64(_NUM_SPINS))) as (early, late):
        with early:
            _emit_pause(e)
        with late:
            e.call("sched_yield", I32, [])
    builder.branch(test)
    builder.position_at_end(end)


def _emit_pause(e: Emitter) -> None:
    """Lets the core's other hardware thread run and leaves the loop without a mispredicted load."""
    if e.is_x86:
        e.call("llvm.x86.sse2.pause", ir.VoidType(), [])


def _emit_take(e: Emitter, _spec: Specialization, counter: Value, count: Value) -> Any:
    pointer = e.builder.inttoptr(counter, I64.as_pointer())
    return e.builder.atomic_rmw("add", pointer, count, "monotonic")


def _emit_reset(e: Emitter, _spec: Specialization, counter: Value) -> None:
    pointer = e.builder.inttoptr(counter, I64.as_pointer())
    e.builder.store_atomic(e.i64(0), pointer, "monotonic", 8)


reset = emitted("reset", _emit_reset)  # (spec, counter)
wait = emitted("wait", _emit_wait)  # (spec, barrier, num_threads)
take = emitted_value("take", _emit_take)  # (spec, counter, count) -> value before the addition
