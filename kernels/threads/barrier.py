"""A barrier and a shared counter for threads inside one compiled function.

Kept in memory the caller owns, all zeros at first: the number of arrivals and, a cache line
further, the generation, which every full barrier raises by one, and the number of sleepers.

A waiting thread spins for tens of microseconds, longer than a stage is uneven between threads that
run, then sleeps.  A thread not there by then has lost its core to another process: the sleeper's
core is what it needs, and only a core that is really free takes it over.
"""

from typing import Any, Final

from llvmlite import ir

from kernels.vector_ir.emitter import I32, I64, Emitter, Value
from kernels.vector_ir.function import emitted, emitted_value
from kernels.vector_ir.specialization import Specialization

BARRIER_BYTES: Final = 192
_GENERATION_OFFSET_BYTES: Final = 64
_SLEEPERS_OFFSET_BYTES: Final = 128
_NUM_SPINS: Final = 1 << 10
_FUTEX_WAIT_PRIVATE: Final = 128
_FUTEX_WAKE_PRIVATE: Final = 129


def _emit_wait(e: Emitter, _spec: Specialization, barrier: Value, num_threads: Value) -> None:
    builder = e.builder
    arrivals = builder.inttoptr(barrier, I32.as_pointer())
    generation = builder.inttoptr(e.at(barrier, _GENERATION_OFFSET_BYTES), I32.as_pointer())
    sleepers = builder.inttoptr(e.at(barrier, _SLEEPERS_OFFSET_BYTES), I32.as_pointer())
    current = builder.load_atomic(generation, "acquire", 4)
    num_before = builder.atomic_rmw("add", arrivals, I32(1), "acq_rel")
    last = builder.sub(builder.trunc(num_threads, I32), I32(1))
    with builder.if_else(builder.icmp_signed("==", num_before, last)) as (is_last, is_not):
        with is_last:
            builder.store_atomic(I32(0), arrivals, "monotonic", 4)
            # Sequentially consistent, here and where sleepers count themselves: whoever counts
            # too late to be woken finds the generation changed and does not sleep.
            builder.atomic_rmw("add", generation, I32(1), "seq_cst")
            num_sleepers = builder.load_atomic(sleepers, "seq_cst", 4)
            with builder.if_then(builder.icmp_signed("!=", num_sleepers, I32(0))):
                _emit_futex(e, generation, _FUTEX_WAKE_PRIVATE, I32(1 << 30))
        with is_not:
            _emit_spin_then_sleep(e, generation, sleepers, current)


def _emit_spin_then_sleep(e: Emitter, generation: Value, sleepers: Value, current: Value) -> None:
    builder = e.builder
    (num_spins,) = e.variables([e.i64(0)])
    test = builder.append_basic_block("spin.test")
    body = builder.append_basic_block("spin.body")
    end = builder.append_basic_block("spin.end")
    builder.branch(test)
    builder.position_at_end(test)
    is_open = builder.icmp_signed("!=", builder.load_atomic(generation, "acquire", 4), current)
    builder.cbranch(is_open, end, body)
    builder.position_at_end(body)
    spins = builder.add(e.get(num_spins), e.i64(1))
    e.set(num_spins, spins)
    with builder.if_else(builder.icmp_signed("<", spins, e.i64(_NUM_SPINS))) as (early, late):
        with early:
            _emit_pause(e)
        with late:
            builder.atomic_rmw("add", sleepers, I32(1), "seq_cst")
            _emit_futex(e, generation, _FUTEX_WAIT_PRIVATE, current)
            builder.atomic_rmw("sub", sleepers, I32(1), "seq_cst")
    builder.branch(test)
    builder.position_at_end(end)


def _emit_futex(e: Emitter, word: Value, operation: int, value: Value) -> None:
    """Linux's futex(2).  Waiting returns at once when the word is not ``value`` any more."""
    number = 202 if e.is_x86 else 98
    address = e.builder.ptrtoint(word, I64)
    wide = e.builder.zext(value, I64)
    none = e.i64(0)
    arguments = [e.i64(number), address, e.i64(operation), wide, none, none, none]
    e.call("syscall", I64, arguments)


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
