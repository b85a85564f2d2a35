"""What the inner loops of a Q4_1 linear reach on one thread with everything in the nearest caches.

    python -m benchmarks.inner_loops [--level avx2] [--rounds 60]

No memory and no other thread: this is what computing costs, beside which ``step_profile`` shows the
rest.  Loops take turns, and the best call of each counts, so another program's turn on the core
does little.  ``summed by groups`` is no kernel of ours: codes times x, scales only once a group
(docs/decisions/0053), a bound for what a lone row could gain.
"""

import argparse
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from kernels.decoder_step.model import spread_row
from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS, LinearSpecialization, WeightFormat
from kernels.linear.packing import pack_float32
from kernels.linear.tiles import emit_direct_rows, emit_rows
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import Emit, define_in
from kernels.vector_ir.levels import FeatureLevel, detect_level

NUM_GROUPS: Final = 48  # of an input of 1,536
NUM_ROWS: Final = 126  # whole tiles of rows with AVX2
Y_STRIDE_BYTES: Final = 4 * spread_row(2 * GROUP_SIZE * NUM_GROUPS)  # where rows are widest
NUM_REPETITIONS: Final = 16  # in a call, which itself takes a microsecond
Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Loop:
    call: Call
    num_operations: int  # multiplications with weights and additions, of one repetition


class Compiled:
    """One emitted function and LLVM's engine that owns its code."""

    def __init__(self, emit: Emit, spec: LinearSpecialization, num_arguments: int) -> None:
        module = ir.Module("inner_loop")
        module.triple = llvm.get_process_triple()
        define_in(module, "loop", _repeated(emit), spec, num_arguments)
        parsed = llvm.parse_assembly(str(module))
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
        builder.getModulePassManager().run(parsed, builder)
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)
        self._function = prototype(self._engine.get_function_address("loop"))

    def bound_to(self, *arguments: int) -> Call:
        values = [ctypes.c_int64(argument) for argument in arguments]
        return lambda: self._function(*values)


def _repeated(emit: Emit) -> Emit:
    def emit_repeated(e: Emitter, spec: LinearSpecialization, *operands: Value) -> None:
        with e.loop(e.i64(NUM_REPETITIONS)):
            emit(e, spec, *operands)

    return emit_repeated


def emit_summed_by_groups(
    e: Emitter, _spec: LinearSpecialization, weights: Value, x: Value, sums: Value, y: Value
) -> None:
    """Two chains for each vector of columns, as many as hide what an addition takes."""
    columns = range(0, TILE_COLUMNS, e.lanes)
    totals = e.variables([e.zero for _ in columns])
    q4_1 = WeightFormat.Q4_1
    with e.loop(e.i64(NUM_GROUPS)) as group:
        address, offset = e.at(weights, e.times(group, q4_1.group_bytes)), e.times(group, 4)
        row = e.at(x, e.times(group, 4 * GROUP_SIZE))
        chains = [[e.zero for _ in columns] for _ in range(2)]
        for word in range(GROUP_SIZE // 8):
            for nibble in range(8):
                scalar = e.broadcast(row, 4 * (8 * word + nibble))
                for v, column in enumerate(columns):
                    place = q4_1.codes_offset_bytes + 4 * (TILE_COLUMNS * word + column)
                    codes = e.nibble_to_f32(e.load_i32(address, place), nibble)
                    chains[nibble % 2][v] = e.fma(codes, scalar, chains[nibble % 2][v])
        for v, column in enumerate(columns):
            product = e.add(chains[0][v], chains[1][v])
            total = e.fma(product, e.load_f16(address, 2 * column), e.get(totals[v]))
            offsets = e.load_f16(address, 2 * (TILE_COLUMNS + column))
            e.set(totals[v], e.fma(offsets, e.broadcast(e.at(sums, offset)), total))
    for v, column in enumerate(columns):
        e.store_f32(e.get(totals[v]), y, 4 * column)


def emit_unpacked_rows(e: Emitter, spec: LinearSpecialization, *operands: Value) -> None:
    emit_rows(e, spec, *operands, e.i64(0), is_unpacked=True)


def make_loops(level: FeatureLevel, memory: Mapping[str, Any]) -> dict[str, Loop]:
    spec = LinearSpecialization(level, WeightFormat.Q4_1)
    at = {name: array.ctypes.data for name, array in memory.items()}
    stride, size = 4 * GROUP_SIZE * NUM_GROUPS, GROUP_SIZE * NUM_GROUPS * TILE_COLUMNS
    rows = Compiled(emit_direct_rows, spec, 8)
    grouped = Compiled(emit_summed_by_groups, spec, 4)
    unpacked = Compiled(emit_unpacked_rows, spec, 7)

    def direct(count: int) -> Loop:
        call = rows.bound_to(
            at["weights"], at["x"], stride, NUM_GROUPS, at["y"], Y_STRIDE_BYTES, count,
            at["unpacked"],
        )  # fmt: skip
        return Loop(call, 2 * size * count)

    def blocks(num_groups: int) -> Loop:
        call = unpacked.bound_to(
            at["unpacked"], at["x"], stride, num_groups, at["y"], Y_STRIDE_BYTES, NUM_ROWS
        )
        return Loop(call, 2 * size * NUM_ROWS * num_groups // NUM_GROUPS)

    lone = grouped.bound_to(at["weights"], at["x"], at["x"], at["y"])
    return {
        "codes, 1 row": direct(1),
        "codes, 1 row, summed by groups": Loop(lone, 2 * size),
        "codes, 4 rows": direct(4),
    } | {f"float32, {NUM_ROWS} rows, {n} groups at once": blocks(n) for n in (4, 24)}


def make_memory() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    num_inputs = GROUP_SIZE * NUM_GROUPS
    weight = generator.standard_normal((TILE_COLUMNS, num_inputs), np.float32)
    groups = generator.integers(0, 256, (NUM_GROUPS, WeightFormat.Q4_1.group_bytes), np.uint8)
    scales = groups[:, : WeightFormat.Q4_1.codes_offset_bytes].view(np.float16)
    scales[:] = 0.01  # not whatever bits make: numbers too small for a float16 are slow ones
    return {
        "weights": groups,
        "unpacked": pack_float32(weight).storage,
        "x": generator.standard_normal((NUM_ROWS, num_inputs), np.float32),
        "y": np.zeros((NUM_ROWS, Y_STRIDE_BYTES // 4), np.float32),
    }


def best_seconds(calls: Sequence[Call], rounds: int) -> list[float]:
    """Of one repetition."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            started_s = time.perf_counter()
            call()
            best[index] = min(best[index], (time.perf_counter() - started_s) / NUM_REPETITIONS)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=FeatureLevel, default=detect_level())
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    memory = make_memory()
    loops = make_loops(arguments.level, memory)
    seconds = best_seconds([loop.call for loop in loops.values()], arguments.rounds)
    print(f"{arguments.level}, one thread, best of {arguments.rounds} rounds")
    print("| loop | GFLOP/s | ns for a vector of weights and a row |")
    print("|---|---|---|")
    for (name, loop), duration_s in zip(loops.items(), seconds, strict=True):
        vectors = loop.num_operations / 2 / arguments.level.lanes
        print(
            f"| {name} | {loop.num_operations / duration_s / 1e9:.1f} "
            f"| {duration_s / vectors * 1e9:.3f} |"
        )


if __name__ == "__main__":
    main()
