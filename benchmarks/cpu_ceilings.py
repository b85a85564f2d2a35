"""What this machine can do at most: how fast it reads memory, and how fast it multiplies.

All threads at once, the best of several tries: no kernel is faster for long.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from kernels.threads.team import ThreadTeam
from kernels.vector_ir.dot_product import MAX_QUADS, broadcast_quad, dot, operand
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compile_for, compiled_entry, emitted
from kernels.vector_ir.levels import FeatureLevel
from kernels.vector_ir.specialization import Specialization

_READ_BYTES: Final = 512 << 20  # beyond any cache
_NUM_SUMS: Final = 8
_MATRIX_SIZE: Final = 1536
_NUM_DOTS: Final = 1 << 23
_NUM_PLACES: Final = 64  # of quads, in the first cache
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    read_bytes_per_s: float
    float32_per_s: float  # multiplications and additions
    int8_per_s: float

    def __str__(self) -> str:
        return (
            f"reads {self.read_bytes_per_s / 1e9:.1f} GB/s, "
            f"float32 matrix product {self.float32_per_s / 1e9:.0f} GFLOP/s, "
            f"int8 dot products {self.int8_per_s / 1e9:.0f} GOP/s"
        )


def measure_ceilings(team: ThreadTeam, level: FeatureLevel) -> Ceilings:
    return Ceilings(_read_speed(team, level), _gemm_speed(team.num_threads), _dots(team, level))


def _read_speed(team: ThreadTeam, level: FeatureLevel) -> float:
    values = np.ones(_READ_BYTES, np.uint8)
    targets = np.zeros((team.num_threads, 1024), np.uint8)
    spec, share = Specialization(level), _READ_BYTES // team.num_threads
    arguments = (spec, values.ctypes.data, share, targets.ctypes.data)
    compile_for(_read_share, 0, 0, *arguments)
    return _READ_BYTES / _best_s(lambda: team.run(_read_share, *arguments))


def _gemm_speed(num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    a, b = torch.randn(2, _MATRIX_SIZE, _MATRIX_SIZE)
    return 2 * _MATRIX_SIZE**3 / _best_s(lambda: torch.mm(a, b))


def _dots(team: ThreadTeam, level: FeatureLevel) -> float:
    """A group of codes in registers against the quads of many rows, as a linear has it."""
    memory = np.ones((team.num_threads, 8192), np.uint8)
    arguments = (Specialization(level), memory.ctypes.data, _NUM_DOTS)
    compile_for(_dot_share, 0, 0, *arguments)
    num_products = team.num_threads * _NUM_DOTS * MAX_QUADS * 4 * level.lanes
    return 2 * num_products / _best_s(lambda: team.run(_dot_share, *arguments))


def _best_s(function: Callable[[], Any]) -> float:
    times = []
    for _ in range(_TRIES):
        started_s = time.perf_counter()
        function()
        times.append(time.perf_counter() - started_s)
    return min(times)


def _emit_read(e: Emitter, _spec: Specialization, source: Value, size: Value, to: Value) -> None:
    vector_bytes = 4 * e.lanes
    sums = e.variables([e.zero] * _NUM_SUMS)
    with e.loop(e.builder.sdiv(size, e.i64(_NUM_SUMS * vector_bytes))) as index:
        place = e.at(source, e.times(index, _NUM_SUMS * vector_bytes))
        for number, variable in enumerate(sums):
            e.set(variable, e.add(e.load_f32(place, number * vector_bytes), e.get(variable)))
    for number, variable in enumerate(sums):
        e.store_f32(e.get(variable), to, number * vector_bytes)


def _emit_dots(e: Emitter, _spec: Specialization, memory: Value, count: Value) -> None:
    operands = [operand(e, e.load_i32(memory, 4 * e.lanes * i)) for i in range(MAX_QUADS)]
    (total,) = e.variables([e.constant_i32(0)])
    with e.loop(count) as index:
        place = e.builder.and_(index, e.i64(_NUM_PLACES - 1))
        x = e.at(memory, e.times(place, 4 * MAX_QUADS))
        quads = [broadcast_quad(e, x, 4 * number) for number in range(MAX_QUADS)]
        e.set(total, e.builder.add(e.get(total), dot(e, operands, quads)))
    e.store_vector(e.get(total), memory, 4096)


_read = emitted("ceiling_read", _emit_read)
_dot_loop = emitted("ceiling_dots", _emit_dots)


@compiled_entry
def _read_share(
    thread: int, _num_threads: int, spec: Any, values: int, share: int, targets: int
) -> None:
    _read(spec, values + thread * share, share, targets + thread * 1024)


@compiled_entry
def _dot_share(thread: int, _num_threads: int, spec: Any, memory: int, count: int) -> None:
    _dot_loop(spec, memory + thread * 8192, count)
