"""Tensors of a Hugging Face directory: one ``model.safetensors``, or shards with an index."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from replica.errors import ModelInvalid, ModelNotFound, ModelUnsupported

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_FORMATS: Final[Mapping[str, str]] = {"F32": "float32", "BF16": "bfloat16"}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsDirectory:
    """A TensorSource.  Half-precision tensors are widened to float32, which is exact."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelNotFound or ModelInvalid."""
        self._directory = directory
        self._file_by_name = self._read_index()

    def names(self) -> Collection[str]:
        return self._file_by_name.keys()

    def load(self, name: str) -> torch.Tensor:
        return self._tensor(name).to(torch.float32).contiguous()

    def stored_format(self, name: str) -> str:
        with self._opened(name) as file:
            kind: str = file.get_slice(name).get_dtype()
        return _FORMATS.get(kind, kind)

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        tensor = self._tensor(name)
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.view(torch.uint16)
        return tensor.numpy()

    def _tensor(self, name: str) -> torch.Tensor:
        with self._opened(name) as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if tensor.dtype not in _FLOATS:
            raise ModelUnsupported(f"tensor {name}: {tensor.dtype} is not supported")
        return tensor

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """The library's file, which has no types."""
        file_name = self._file_by_name.get(name)
        if file_name is None:
            raise ModelInvalid(f"{self._directory.name}: tensor {name!r} is missing")
        try:
            with safe_open(self._directory / file_name, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as exc:
            raise ModelInvalid(f"{file_name}: {exc}") from exc

    def _read_index(self) -> dict[str, str]:
        index_path = self._directory / _INDEX
        if index_path.exists():
            try:
                return msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map
            except msgspec.MsgspecError as exc:
                raise ModelInvalid(f"{_INDEX}: {exc}") from exc
        single = self._directory / _SINGLE
        if not single.exists():
            raise ModelNotFound(f"{self._directory}: neither {_SINGLE} nor {_INDEX} is there")
        try:
            with safe_open(single, framework="pt") as file:
                return dict.fromkeys(file.keys(), _SINGLE)
        except SafetensorError as exc:
            raise ModelInvalid(f"{_SINGLE}: {exc}") from exc
