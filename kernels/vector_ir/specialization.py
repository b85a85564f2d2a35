"""Compile-time constants that travel in the type of an argument.

A kernel's first argument is a ``Specialization``: nothing at run time, but its Numba type carries
feature level, formats and shapes.  So one source gives one compiled function per specialization,
each found again in the disk cache, which closures over constants are not.

The type also carries a digest of all kernel sources.  Numba watches only the file of the outermost
function: without the digest, an edited tile would run its old code from the cache.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numba.core import types
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox

from kernels.vector_ir.levels import FeatureLevel

_NEVER_COMPILED: Final = {"reference.py", "packing.py"}


@dataclass(frozen=True, slots=True)
class Specialization:
    """Base of each operation's own: frozen, and of values whose ``repr`` tells them apart."""

    level: FeatureLevel


class SpecializationType(types.Type):
    def __init__(self, specialization: Specialization) -> None:
        self.specialization = specialization
        super().__init__(name=f"{specialization!r}@{source_digest()}")


@functools.cache
def source_digest() -> str:
    """Of every Python file under ``kernels`` that compiled code can come from."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        if path.name not in _NEVER_COMPILED:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@typeof_impl.register(Specialization)  # type: ignore[untyped-decorator]  # Numba has no types
def _typeof(value: Specialization, _context: Any) -> SpecializationType:
    return _type_of(value)


@functools.cache
def _type_of(value: Specialization) -> SpecializationType:
    """Cached: Numba asks for the type on every call."""
    return SpecializationType(value)


register_model(SpecializationType)(models.OpaqueModel)


@unbox(SpecializationType)  # type: ignore[untyped-decorator]
def _unbox(_type: SpecializationType, _object: Any, context: Any) -> NativeValue:
    return NativeValue(context.context.get_dummy_value())
