"""Moving rows."""

from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import emitted
from kernels.vector_ir.specialization import Specialization


def _emit_copy(
    e: Emitter, _spec: Specialization, source: Value, target: Value, size: Value
) -> None:
    """size: float32 elements, whole vectors."""
    with e.offsets(size, 4) as offset:
        e.store_f32(e.load_f32(source, offset), target, offset)


copy_row = emitted("copy_row", _emit_copy)
