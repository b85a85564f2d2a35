"""Denormal numbers count as zero while kernels run: they cost a hundred times a normal one."""

from typing import Final

from llvmlite import ir

from kernels.vector_ir.emitter import I8, I32, Emitter, Value
from kernels.vector_ir.function import emitted
from kernels.vector_ir.specialization import Specialization

_FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO: Final = 0x8040  # bits of the x86 MXCSR register


def _emit_flush(e: Emitter, _spec: Specialization, saved: Value) -> None:
    """saved: address of an int32 that keeps the thread's setting."""
    if not e.is_x86:
        return
    pointer = e.builder.inttoptr(saved, I8.as_pointer())
    e.call("llvm.x86.sse.stmxcsr", ir.VoidType(), [pointer])
    before = e.load_scalar(saved, 0, I32)
    (changed,) = e.variables([e.builder.or_(before, I32(_FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO))])
    pointer = e.builder.bitcast(changed, I8.as_pointer())
    e.call("llvm.x86.sse.ldmxcsr", ir.VoidType(), [pointer])


def _emit_restore(e: Emitter, _spec: Specialization, saved: Value) -> None:
    if e.is_x86:
        pointer = e.builder.inttoptr(saved, I8.as_pointer())
        e.call("llvm.x86.sse.ldmxcsr", ir.VoidType(), [pointer])


flush_denormals = emitted("flush_denormals", _emit_flush)
restore_denormals = emitted("restore_denormals", _emit_restore)
