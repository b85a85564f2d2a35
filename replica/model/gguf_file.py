"""A GGUF container: metadata as Python values, tensors as memory-mapped bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.  The ``gguf`` package's own
reader builds several numpy arrays per vocabulary entry: 3.2 s for 49,152 tokens, where this takes
0.1 s.  Its constants and its dequantization are used.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from replica.errors import ModelInvalid

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT_BYTES: Final = 32
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct("<" + code)
    for kind, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    shape: tuple[int, ...]  # slowest dimension first, as in numpy and PyTorch
    kind: gguf.GGMLQuantizationType
    offset_bytes: int  # from the start of the file
    size_bytes: int


class GgufFile:
    """Open for as long as the object lives."""

    def __init__(self, path: Path) -> None:
        """Raises ModelInvalid."""
        self.path = path
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelInvalid(f"{path.name}: the file is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = _Reader(self._map)
        try:
            num_tensors, num_fields = reader.header()
            self.metadata: dict[str, Any] = dict(reader.field() for _ in range(num_fields))
            entries = [reader.tensor() for _ in range(num_tensors)]
            alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES))
            start = -(-reader.offset_bytes // alignment) * alignment
            self.tensors = {e.name: self._placed(e, start) for e in entries}
        except (struct.error, UnicodeDecodeError, KeyError, ValueError, OverflowError) as exc:
            raise ModelInvalid(f"{path.name}: not a readable GGUF file: {exc}") from exc

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """A new array.  Raises ModelInvalid."""
        entry = self.entry(name)
        values = gguf.quants.dequantize(self.raw(name), entry.kind).reshape(entry.shape)
        # A tensor stored as float32 comes back as a view of the read-only file.
        return (
            values.copy() if not values.flags.writeable else values.astype(np.float32, copy=False)
        )

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A view of the read-only file: bytes in rows.  Raises ModelInvalid."""
        entry = self.entry(name)
        raw = np.frombuffer(self._map, np.uint8, entry.size_bytes, entry.offset_bytes)
        return raw.reshape(*entry.shape[:-1], -1)

    def entry(self, name: str) -> TensorEntry:
        """Raises ModelInvalid."""
        entry = self.tensors.get(name)
        if entry is None:
            raise ModelInvalid(f"{self.path.name}: tensor {name!r} is missing")
        return entry

    def _placed(self, entry: TensorEntry, start: int) -> TensorEntry:
        offset_bytes = start + entry.offset_bytes
        if offset_bytes + entry.size_bytes > len(self._map):
            raise ValueError(f"tensor {entry.name!r} lies beyond the end of the file")
        return TensorEntry(entry.name, entry.shape, entry.kind, offset_bytes, entry.size_bytes)


class _Reader:
    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self.offset_bytes = 0

    def header(self) -> tuple[int, int]:
        """(number of tensors, number of metadata fields)."""
        magic = self._bytes(len(_MAGIC))
        version = int(self._scalar(4))
        if magic != _MAGIC or version not in _VERSIONS:
            raise ValueError(f"expected GGUF version 2 or 3, got {magic!r} version {version}")
        return int(self._scalar(10)), int(self._scalar(10))

    def field(self) -> tuple[str, Any]:
        name = self._string()
        return name, self._value(int(self._scalar(4)))

    def tensor(self) -> TensorEntry:
        """Offsets are still relative to the data section."""
        name = self._string()
        num_dims = int(self._scalar(4))
        shape = tuple(int(self._scalar(10)) for _ in range(num_dims))[::-1]
        kind = gguf.GGMLQuantizationType(int(self._scalar(4)))
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_values = int(np.prod(shape, dtype=np.int64))
        if not shape or shape[-1] % block_values:
            raise ValueError(f"tensor {name!r} has shape {shape}")
        size_bytes = num_values // block_values * block_bytes
        return TensorEntry(name, shape, kind, int(self._scalar(10)), size_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(kind)
        item_kind, length = int(self._scalar(4)), int(self._scalar(10))
        if item_kind in (_STRING, _ARRAY):
            return [self._value(item_kind) for _ in range(length)]
        item = _SCALARS[item_kind]
        raw = self._bytes(length * item.size)
        return [value for (value,) in item.iter_unpack(raw)]

    def _scalar(self, kind: int) -> Any:
        item = _SCALARS[kind]
        (value,) = item.unpack_from(self._buffer, self.offset_bytes)
        self.offset_bytes += item.size
        return value

    def _string(self) -> str:
        return self._bytes(int(self._scalar(10))).decode("utf-8")

    def _bytes(self, length: int) -> bytes:
        end = self.offset_bytes + length
        if end > len(self._buffer):
            raise ValueError("the file is cut off")
        raw = self._buffer[self.offset_bytes : end]
        self.offset_bytes = end
        return raw
