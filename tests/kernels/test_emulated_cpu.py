"""The emulated processor calls as a real one would, and tells faults instead of dying of them."""

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("bochscpu", reason="bochscpu-python is not installed", exc_type=ImportError)

from tests.kernels.emulated_cpu import EmulationError
from tests.kernels.emulated_team import emulated_cpu

RET = "c3"
Place = Callable[[str], int]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Puts machine code, in hex, where it stays until the end: the processor keeps what it read."""
    pages: list[mmap.mmap] = []

    def placed(code: str) -> int:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex(code))
        pages.append(page)
        return ctypes.addressof(ctypes.c_char.from_buffer(page))

    yield placed
    pages.clear()


def test_arguments_come_in_registers_and_then_on_the_stack(place: Place) -> None:
    eighth = place("8b442410" + RET)  # mov eax, [rsp + 16]
    second_float = place("f20f2cc1" + RET)  # cvttsd2si eax, xmm1
    assert emulated_cpu().call(eighth, range(10, 20)) == 17
    assert emulated_cpu().call(second_float, [], [1.0, 42.5]) == 42


def test_code_runs_on_the_memory_of_the_process(place: Place) -> None:
    before = emulated_cpu().num_evex
    numbers = np.arange(16, dtype=np.int32)
    # vmovdqu32 zmm0, [rdi]; vpaddd zmm0, zmm0, zmm0; vmovdqu32 [rdi], zmm0
    twice = place("62f17e486f07" + "62f17d48fec0" + "62f17e487f07" + RET)
    emulated_cpu().call(twice, [numbers.ctypes.data])
    np.testing.assert_array_equal(numbers, 2 * np.arange(16))
    assert emulated_cpu().num_evex == before + 3


def test_bytes_are_multiplied_by_fours(place: Place) -> None:
    """Unsigned ones of the first with signed ones of the second: AVX-512 VNNI."""
    codes, x = np.full(64, 255, np.uint8), np.full(64, -127, np.int8)
    sums = np.arange(16, dtype=np.int32)
    # vmovdqu32 zmm0, [rdx]; vmovdqu32 zmm1, [rdi]; vpdpbusd zmm0, zmm1, [rsi]; and back
    dot = place("62f17e486f02" + "62f17e486f0f" + "62f275485006" + "62f17e487f02" + RET)
    emulated_cpu().call(dot, [array.ctypes.data for array in (codes, x, sums)])
    np.testing.assert_array_equal(sums, np.arange(16) - 4 * 255 * 127)


NOWHERE = struct.pack("<Q", 0x7E00_0000_0000).hex()
FAULTS: dict[str, Any] = {
    "no instruction": ("0f0b", "invalid opcode"),
    "of a newer processor": ("62f57c485800", "invalid opcode"),  # vaddph zmm0, zmm0, [rax]
    "not aligned": ("62f17c482807", "general protection"),  # vmovaps zmm0, [rdi]
    "the null page": ("31ff8b07", "page fault"),  # xor edi, edi; mov eax, [rdi]
    "nothing mapped": ("48bf" + NOWHERE + "8b07", "page fault"),  # mov rdi, ...; mov eax, [rdi]
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_the_next_call_is_right(name: str, place: Place) -> None:
    code, message = FAULTS[name]
    floats = np.zeros(64, np.float32)
    misaligned = floats.ctypes.data // 64 * 64 + 68
    with pytest.raises(EmulationError, match=message):
        emulated_cpu().call(place(code + RET), [misaligned])
    assert emulated_cpu().call(place("b807000000" + RET), []) == 7  # mov eax, 7
