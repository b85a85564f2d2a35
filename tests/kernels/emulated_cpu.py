"""A processor with AVX-512 in software, for machines without one.

Bochs's processor, of the package bochscpu-python, runs code of this very process on its memory: an
address means the same inside and outside, and arrays need not be carried over.  Only the code that
``call`` is given runs there; it must not depend on other threads.

The process's memory is mapped by regions of 1 GiB, in the order in which they are seen, since the
emulated processor's physical addresses are shorter than virtual ones; pages follow when touched.
"""

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import bochscpu
import bochscpu.cpu
from bochscpu._bochscpu import memory

_REGION_BITS: Final = 30
_PAGE_BYTES: Final = 4096
_TABLE_PAGES: Final = 64
_ENTRIES: Final = 512  # of a page table
_TABLE, _LARGE_PAGE = 0x07, 0x87  # present, writable, for users; maps 1 GiB
_STACK_BYTES: Final = 8 << 20
_HALT: Final = 0xF4
_CONTROL_4: Final = (1 << 5) | (1 << 9) | (1 << 10) | (1 << 18)  # PAE, SSE and its faults, XSAVE
_FEATURE_STATES: Final = 0xE7  # x87, SSE, AVX, AVX-512
_ROUND_TO_NEAREST: Final = 0x1F80  # MXCSR, all exceptions masked
_MXCSR_BITS: Final = 0xFFFF  # those that may be set
_CODE_SEGMENT, _DATA_SEGMENT = 0x08, 0x10
_EVEX_PREFIX: Final = 0x62
_INTEGER_REGISTERS: Final = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")  # System V's order
_FAULTS: Final = {
    0: "division", 6: "invalid opcode", 7: "no such unit", 13: "general protection",
    14: "page fault", 16: "x87", 17: "alignment", 19: "floating point",
}  # fmt: skip


class EmulationError(Exception):
    """What would have ended the process on a real machine."""


class EmulatedCpu:
    """One a process; not for two threads."""

    def __init__(self) -> None:
        self._memory = _Memory()
        self._stack, self._stack_address = _anonymous(_STACK_BYTES)
        self._halt, self._halt_address = _anonymous(_PAGE_BYTES)
        self._halt[0] = _HALT
        self._session = bochscpu.Session()
        self._session.missing_page_handler = self._memory.supply
        self._watch = _Watch()
        self._hook = self._watch.hook()

    @property
    def num_evex(self) -> int:
        """Instructions decoded so far in the encoding that AVX-512 brought."""
        return self._watch.num_evex

    def call(self, address: int, integers: Sequence[int], floats: Sequence[float] = ()) -> int:
        """The int32 that the C function at ``address`` returns.

        integers: int64 or addresses; floats: float64; both in the order of their own kind.
        Raises EmulationError for a fault.
        """
        assert len(floats) <= 8, "the others would come on the stack"
        self._memory.look()
        in_registers, on_stack = integers[:6], integers[6:]
        words = [self._halt_address, *(value & (1 << 64) - 1 for value in on_stack)]
        top = self._stack_address + _STACK_BYTES - 8 * (len(words) + len(words) % 2 + 2)
        top -= top % 16 - 8  # as a call leaves it
        ctypes.memmove(top, (ctypes.c_uint64 * len(words))(*words), 8 * len(words))
        state = _long_mode(self._memory.tables_at, thread_pointer())
        state.rip, state.rsp = address, top
        for name, value in zip(_INTEGER_REGISTERS, in_registers, strict=False):
            setattr(state, name, value & (1 << 64) - 1)
        registers = state.zmm
        for register, value in zip(registers, floats, strict=False):
            register.q = [int.from_bytes(ctypes.c_double(value), "little"), *[0] * 7]
        state.zmm = registers
        self._watch.fault = self._memory.missed = None
        self._session.cpu.set_state(state)
        self._session.run([self._hook])
        if self._watch.fault is not None:
            raise EmulationError(self._watch.fault)
        if self._memory.missed is not None:
            raise EmulationError(f"nothing lies at {self._memory.missed:#x}")
        return int(self._session.cpu.rax) & 0xFFFF_FFFF


class _Watch:
    """What is noticed while code runs.

    It knows no session but the one it is told: Python cannot free a circle through this package,
    and what is left of it when Python has ended crashes.
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        self.num_evex = 0

    def hook(self) -> Any:
        hook = bochscpu.Hook()
        hook.hlt = lambda session, _cpu: session.stop()
        hook.exception = self._take_exception
        hook.opcode = self._take_opcode
        return hook

    def _take_exception(self, session: Any, _cpu: int, vector: int, _error: int) -> None:
        what = _FAULTS.get(vector, f"exception {vector}")
        self.fault = f"{what} at {session.cpu.rip:#x}, of {session.cpu.cr2:#x}"
        session.stop()

    def _take_opcode(
        self, _session: Any, _cpu: int, _instruction: Any, first_byte: int, *_rest: Any
    ) -> None:
        self.num_evex += first_byte == _EVEX_PREFIX


class _Memory:
    """Page tables of the emulated processor, and the process's pages behind them."""

    def __init__(self) -> None:
        self.tables_at: Final = 0  # physical
        self.missed: int | None = None  # an address at which the process has nothing
        self._tables, self._base = _anonymous(_TABLE_PAGES * _PAGE_BYTES)
        for index in range(_TABLE_PAGES):
            memory.page_insert(index * _PAGE_BYTES, self._base + index * _PAGE_BYTES)
        self._num_tables = 1
        self._physical: dict[int, int] = {}  # region -> physical region
        self._virtual: dict[int, int] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        _, self._blank_page = _anonymous(_PAGE_BYTES)

    def look(self) -> None:
        """To be done whenever the process may have mapped more."""
        self._starts, self._ends = _mapped_ranges()
        for start, end in zip(self._starts, self._ends, strict=True):
            for region in range(start >> _REGION_BITS, ((end - 1) >> _REGION_BITS) + 1):
                if region not in self._physical:
                    self._map(region)

    def supply(self, physical: int) -> None:
        """The page is touched for the first time."""
        region = self._virtual[physical >> _REGION_BITS]
        offset = physical & ((1 << _REGION_BITS) - 1) & -_PAGE_BYTES
        address = (region << _REGION_BITS) + offset
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._ends[index]:
            self.missed, address = address, self._blank_page
        memory.page_insert(physical & -_PAGE_BYTES, address)

    def _map(self, region: int) -> None:
        physical = len(self._physical) + 1  # the tables have the first
        self._physical[region], self._virtual[physical] = physical, region
        root = self._entry(self.tables_at, region // _ENTRIES)
        if root.value == 0:
            root.value = self._num_tables * _PAGE_BYTES | _TABLE
            self._num_tables += 1
        entry = self._entry(root.value & -_PAGE_BYTES, region % _ENTRIES)
        entry.value = physical << _REGION_BITS | _LARGE_PAGE

    def _entry(self, table: int, index: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._base + table + 8 * index)


def thread_pointer() -> int:
    """Of the calling thread: the C library's functions find their own state by it."""
    pthread_self = ctypes.CDLL(None).pthread_self
    pthread_self.restype = ctypes.c_uint64
    return int(pthread_self())


def _mapped_ranges() -> tuple[list[int], list[int]]:
    """Starts and ends, ascending, of what can be read below the kernel's half."""
    starts, ends = [], []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        start, end = (int(part, 16) for part in addresses.split("-"))
        if permissions.startswith("r") and end <= 1 << 47:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _long_mode(tables_at: int, fs_base: int) -> Any:
    state = bochscpu.State()
    bochscpu.cpu.set_long_mode(state)
    state.cr3, state.cr4, state.xcr0 = tables_at, _CONTROL_4, _FEATURE_STATES
    state.rflags, state.mxcsr, state.mxcsr_mask = 2, _ROUND_TO_NEAREST, _MXCSR_BITS
    state.cs = _segment(_CODE_SEGMENT, is_code=True)
    for name in ("ds", "es", "ss", "gs"):
        setattr(state, name, _segment(_DATA_SEGMENT))
    state.fs = _segment(_DATA_SEGMENT, base=fs_base)
    return state


def _segment(selector: int, base: int = 0, *, is_code: bool = False) -> Any:
    flags = bochscpu.cpu.SegmentFlags()
    flags.P = flags.S = flags.W = flags.R = flags.A = True
    flags.E = flags.L = is_code
    flags.DB = not is_code
    segment = bochscpu.Segment()
    segment.present, segment.selector, segment.attr = True, selector, int(flags)
    segment.base, segment.limit = base, 0xFFFF_FFFF
    return segment


def _anonymous(size: int) -> tuple[mmap.mmap, int]:
    """Zeros, and where they lie."""
    area = mmap.mmap(-1, size)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))
