"""Compiled functions run on the emulated processor, with Numba's own conventions for a call."""

import ctypes
import functools
import gc
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numba.core.dispatcher import Dispatcher

from kernels.threads.team import SharedFunction
from kernels.vector_ir.function import compile_for
from kernels.vector_ir.specialization import Specialization
from tests.kernels.emulated_cpu import EmulatedCpu


class EmulatedTeam:
    """Obeys ``ThreadTeam``: its threads enter one after the other, the first does all the work."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads: Final = num_threads

    def run(self, function: SharedFunction, *arguments: Any) -> None:
        for index in range(self.num_threads):
            call(function, index, self.num_threads, *arguments)

    def close(self) -> None:
        """There is nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@functools.cache
def emulated_cpu() -> EmulatedCpu:
    """The process's own."""
    return EmulatedCpu()


def call(function: Any, *arguments: Any) -> None:
    """function: a Numba function, or the code that ``compile_for`` gave for such arguments."""
    if isinstance(function, Dispatcher):
        function = compile_for(function, *arguments)
    code = _code_of(function)
    numbers = list(_flat(arguments))
    assert len(numbers) == _num_arguments(code)
    result, error = ctypes.c_uint64(0), ctypes.c_uint64(0)  # what Numba's code writes, if anything
    status = emulated_cpu().call(
        code.library.get_pointer_to_function(code.fndesc.llvm_func_name),
        [
            ctypes.addressof(result),
            ctypes.addressof(error),
            *(number for number in numbers if isinstance(number, int)),
        ],
        [number for number in numbers if isinstance(number, float)],
    )
    assert status == 0, f"{function} gave up with {status}"


def _code_of(entry: Any) -> Any:
    """What Numba knows of a function that it compiled: only the dispatcher leads there."""
    if entry not in _CODE:
        for found in gc.get_objects():
            if issubclass(type(found), Dispatcher):  # asks the object itself nothing
                _CODE.update({code.entry_point: code for code in found.overloads.values()})
    return _CODE[entry]


_CODE: Final[dict[Any, Any]] = {}


def _num_arguments(code: Any) -> int:
    return len(code.target_context.get_arg_packer(code.fndesc.argtypes).argument_types)


def _flat(value: Any) -> Iterator[int | float]:
    """The numbers that an argument is passed as."""
    match value:
        case Specialization():
            yield 0  # a pointer that nobody follows
        case tuple():
            for part in value:
                yield from _flat(part)
        case np.ndarray():
            owner = parent = 0  # nobody counts references: the caller holds one
            yield from (owner, parent, value.size, value.itemsize, value.ctypes.data)
            yield from (*value.shape, *value.strides)
        case float():
            yield float(value)
        case _:
            yield int(value)
