"""A safetensors container: tensors as views of the memory-mapped file.

Format: https://github.com/huggingface/safetensors#format.  The ``safetensors`` package gives
bfloat16 to torch only, which the compiled step does without.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.errors import UNDECODABLE
from replica.errors import ModelInvalid, ModelUnsupported

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
# What is read as what; bfloat16, which numpy does not know, as its bits.
_DTYPES: Final[Mapping[str, type[np.generic]]] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I32": np.int32,  # codes, eight to a word
}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """Its header has been read.  It is mapped for as long as a view of it lives, and no longer:

    pages of a mapping count as the process's own.
    """

    path: Path
    entries: Mapping[str, _Entry]
    start_bytes: int  # of the first tensor

    def dtype(self, name: str) -> str:
        """In the format's own words.  Raises ModelInvalid for a missing tensor."""
        return self._entry(name).dtype

    def view(self, name: str) -> npt.NDArray[Any]:
        """Read-only.  Raises ModelError or OSError."""
        entry = self._entry(name)
        if entry.dtype not in _DTYPES:
            raise ModelUnsupported(f"tensor {name}: {entry.dtype} is not supported")
        dtype = _DTYPES[entry.dtype]
        start, end = entry.data_offsets
        size_bytes = math.prod(entry.shape) * np.dtype(dtype).itemsize
        if min(entry.shape, default=0) < 0 or start < 0 or end - start != size_bytes:
            raise ModelInvalid(f"{self.path.name}: tensor {name!r} does not fit its place")
        tensors = _mapped(self.path)[self.start_bytes :]
        if end > len(tensors):
            raise ModelInvalid(f"{self.path.name}: tensor {name!r} lies beyond the end of the file")
        return np.frombuffer(tensors[start:end], dtype).reshape(entry.shape)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Widened, which is exact; contiguous and writable.  Raises ModelError or OSError."""
        values = self.view(name)
        if values.dtype == np.int32:
            raise ModelUnsupported(f"tensor {name}: I32 is not supported")
        if values.dtype == np.uint16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)  # a copy, of float32 too

    def _entry(self, name: str) -> _Entry:
        entry = self.entries.get(name)
        if entry is None:
            raise ModelInvalid(f"{self.path.name}: tensor {name!r} is missing")
        return entry


def open_safetensors(path: Path) -> SafetensorsFile:
    """Raises ModelInvalid, or OSError for a file that cannot be read."""
    content = _mapped(path)
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    if start > len(content):
        raise ModelInvalid(f"{path.name}: the file is cut off, or not safetensors")
    try:
        header = msgspec.json.decode(content[_LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
        entries = {
            name: msgspec.json.decode(raw, type=_Entry)
            for name, raw in header.items()
            if name != _METADATA
        }
    except (*UNDECODABLE, UnicodeDecodeError) as exc:
        raise ModelInvalid(f"{path.name}: its header cannot be read: {exc}") from exc
    return SafetensorsFile(path, entries, start)


def _mapped(path: Path) -> memoryview:
    """Until nothing refers to it any more."""
    with path.open("rb") as file:
        if path.stat().st_size <= _LENGTH_BYTES:
            raise ModelInvalid(f"{path.name}: the file is cut off")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
