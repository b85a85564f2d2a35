"""From emitted vector code to functions that compiled Python can call, and back to Python."""

import hashlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.vector_ir.emitter import Emitter
from kernels.vector_ir.specialization import Specialization

Emit = Callable[..., None]  # (emitter, specialization, *LLVM values of the arguments)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS: Final = {"nogil": True, "error_model": "numpy"}  # no exceptions: other threads wait


def compiled(function: _Function) -> _Function:
    """A function for other compiled functions to call; it is part of their cache entries."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """The same, written into each caller.

    For functions over large tiles: LLVM would otherwise optimize the tiles once for the function
    and once more for every caller.
    """
    return numba.njit(inline="always", **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_entry(function: _Function) -> _Function:
    """A function that Python calls, by ``compile_for``; free of the interpreter lock."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


def compile_for(function: Any, *arguments: Any) -> Callable[..., Any]:
    """Compile, or load from the cache, what a call with these arguments will run.

    To be done before several threads enter: one that compiles would keep the others waiting.
    See ``compile_cache`` for where the cache is; without one, every process compiles anew.

    Returns the compiled code, for calls with arguments of these very types: it takes their word for
    it, where ``function`` looks at each argument in Python, a tenth of a millisecond for many.
    """
    with suppress(RuntimeError):  # there is no folder to write to
        function.enable_caching()
    types_of_arguments = tuple(numba.typeof(argument) for argument in arguments)
    return function.compile(types_of_arguments)  # type: ignore[no-any-return]


def emitted(name: str, emit: Emit) -> Any:  # a Numba intrinsic, which has no type
    """A compiled function ``(specialization, *int64 or float32)`` whose body ``emit`` writes.

    It stays a function of its own, however often it is called: inlining large tiles at every call
    is what makes compilation take minutes.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        specialization, *kinds = signature.args
        function = _declare(builder.module, name, specialization, kinds)
        if not function.blocks:
            _define(function, emit, specialization.specialization)
        builder.call(function, values[1:])
        return context.get_dummy_value()

    return _intrinsic(name, emit, types.void, generate)


def emitted_value(name: str, emit: Callable[..., Any]) -> Any:
    """The same for a few instructions that give an int64; they are written where it is called."""

    def generate(_context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        specialization = signature.args[0].specialization
        return emit(Emitter(builder, specialization.level), specialization, *values[1:])

    return _intrinsic(name, emit, types.int64, generate)


def constant_of(name: str, compute: Callable[[Any], int]) -> Any:
    """A compiled function ``(specialization) -> int64``, known when it is compiled."""
    return emitted_value(name, lambda e, specialization: e.i64(compute(specialization)))


def _intrinsic(name: str, emit: Callable[..., Any], result: Any, generate: Any) -> Any:
    def definition(_context: Any, specialization: Any, *arguments: Any) -> tuple[Any, Any]:
        kinds = [types.float32 if isinstance(a, types.Float) else types.int64 for a in arguments]
        return result(specialization, *kinds), generate

    definition.__name__ = name
    definition.__signature__ = _signature_of(emit)  # type: ignore[attr-defined]
    return intrinsic(definition)


def define_in(
    module: ir.Module, name: str, emit: Emit, specialization: Specialization, n: int
) -> None:
    """The same code as a function of ``n`` int64 in its own module: to see its assembly."""
    signature = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * n)
    _define(ir.Function(module, signature, name), emit, specialization)


def _signature_of(emit: Emit) -> inspect.Signature:
    """Numba asks the definition for its number of arguments and cannot count ``*arguments``."""
    positional = [
        p.replace(annotation=p.empty)
        for p in inspect.signature(emit).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    return inspect.Signature(positional)


def _declare(module: ir.Module, name: str, specialization: Any, kinds: list[Any]) -> ir.Function:
    digest = hashlib.sha256(f"{specialization.name}{kinds}".encode()).hexdigest()[:16]
    full_name = f"pandal_{name}_{digest}"
    if full_name in module.globals:
        return module.globals[full_name]
    llvm_kinds = [ir.FloatType() if k == types.float32 else ir.IntType(64) for k in kinds]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), llvm_kinds), full_name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    return function


def _define(function: ir.Function, emit: Emit, specialization: Specialization) -> None:
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(Emitter(builder, specialization.level), specialization, *function.args)
    builder.ret_void()
