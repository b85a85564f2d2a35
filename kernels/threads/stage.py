"""Work that threads share out inside one compiled function, and the end of it.

A stage is so many units.  Threads take units until none is left, say how many they have done, and
go on when all are: nobody waits for a thread, only for units.  A thread that lost its core to
another process before it took one is not missed; it walks through the stages it slept through.

A stage is a cache line of zeros before it starts, used once: int64 units taken, int32 units done,
int32 sleepers, int64 the CPU's time stamp when all were done (zero where there is none to read).
A thread that has to wait spins for tens of microseconds, then sleeps: a unit that is still not done
belongs to a thread without a core, and the sleeper's core is what it needs.
"""

from typing import Any, Final

from llvmlite import ir

from kernels.vector_ir.emitter import I32, I64, Emitter, Value
from kernels.vector_ir.function import emitted, emitted_value
from kernels.vector_ir.specialization import Specialization

STAGE_BYTES: Final = 64
SHARES_PER_THREAD: Final = 8  # how finely operations cut their work
_DONE_OFFSET_BYTES: Final = 8
_SLEEPERS_OFFSET_BYTES: Final = 12
FINISHED_OFFSET_BYTES: Final = 16
_NUM_SPINS: Final = 1 << 10
_FUTEX_WAIT_PRIVATE: Final = 128
_FUTEX_WAKE_PRIVATE: Final = 129
_EVERYBODY: Final = (1 << 31) - 1


def _emit_take(e: Emitter, _spec: Specialization, stage: Value, count: Value) -> Any:
    taken = e.builder.inttoptr(stage, I64.as_pointer())
    return e.builder.atomic_rmw("add", taken, count, "monotonic")


def _emit_finish(
    e: Emitter, _spec: Specialization, stage: Value, num_mine: Value, num_units: Value
) -> None:
    builder = e.builder
    done = builder.inttoptr(e.at(stage, _DONE_OFFSET_BYTES), I32.as_pointer())
    sleepers = builder.inttoptr(e.at(stage, _SLEEPERS_OFFSET_BYTES), I32.as_pointer())
    mine, total = builder.trunc(num_mine, I32), builder.trunc(num_units, I32)
    with builder.if_then(builder.icmp_signed("!=", mine, I32(0))):
        # Sequentially consistent, here and where sleepers count themselves: whoever counts too
        # late to be woken finds the word changed and does not sleep.
        before = builder.atomic_rmw("add", done, mine, "seq_cst")
        is_all = builder.icmp_signed("==", builder.add(before, mine), total)
        with builder.if_then(is_all):
            e.store_scalar(e.time_stamp(), stage, FINISHED_OFFSET_BYTES)
            num_sleepers = builder.load_atomic(sleepers, "seq_cst", 4)
            with builder.if_then(builder.icmp_signed("!=", num_sleepers, I32(0))):
                _emit_futex(e, done, _FUTEX_WAKE_PRIVATE, I32(_EVERYBODY))
    _emit_wait(e, done, sleepers, total)


def _emit_wait(e: Emitter, done: Value, sleepers: Value, total: Value) -> None:
    builder = e.builder
    (num_spins,) = e.variables([e.i64(0)])
    test = builder.append_basic_block("wait.test")
    body = builder.append_basic_block("wait.body")
    end = builder.append_basic_block("wait.end")
    builder.branch(test)
    builder.position_at_end(test)
    current = builder.load_atomic(done, "acquire", 4)
    builder.cbranch(builder.icmp_signed("==", current, total), end, body)
    builder.position_at_end(body)
    spins = builder.add(e.get(num_spins), e.i64(1))
    e.set(num_spins, spins)
    with builder.if_else(builder.icmp_signed("<", spins, e.i64(_NUM_SPINS))) as (early, late):
        with early:
            if e.is_x86:
                e.call("llvm.x86.sse2.pause", ir.VoidType(), [])
        with late:
            builder.atomic_rmw("add", sleepers, I32(1), "seq_cst")
            _emit_futex(e, done, _FUTEX_WAIT_PRIVATE, current)
            builder.atomic_rmw("sub", sleepers, I32(1), "seq_cst")
    builder.branch(test)
    builder.position_at_end(end)


def _emit_futex(e: Emitter, word: Value, operation: int, value: Value) -> None:
    """Linux's futex(2).  Waiting returns at once when the word is not ``value`` any more."""
    number = 202 if e.is_x86 else 98
    none = e.i64(0)
    address, wide = e.builder.ptrtoint(word, I64), e.builder.zext(value, I64)
    arguments = [e.i64(number), address, e.i64(operation), wide, none, none, none]
    e.call("syscall", I64, arguments)


take = emitted_value("take", _emit_take)  # (spec, stage, count) -> first of ``count`` units
finish = emitted("finish", _emit_finish)  # (spec, stage, units done by the caller, units)
