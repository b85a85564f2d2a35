"""Tensors of a Hugging Face directory: one ``model.safetensors``, or shards with an index."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.errors import UNDECODABLE
from replica.errors import ModelInvalid, ModelNotFound
from replica.model.safetensors_file import SafetensorsFile, open_safetensors

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FORMATS: Final[Mapping[str, str]] = {"F32": "float32", "BF16": "bfloat16"}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsDirectory:
    """A TensorSource.  Half-precision tensors are widened to float32, which is exact."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelNotFound or ModelInvalid."""
        self._directory = directory
        self._opened_by_name: dict[str, SafetensorsFile] = {}
        self._file_by_name = self._read_index()

    def names(self) -> Collection[str]:
        return self._file_by_name.keys()

    def load(self, name: str) -> npt.NDArray[np.float32]:
        return self._file(name).floats(name)

    def stored_format(self, name: str) -> str:
        kind = self._file(name).dtype(name)
        return _FORMATS.get(kind, kind)

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        return self._file(name).view(name)

    def _file(self, name: str) -> SafetensorsFile:
        file_name = self._file_by_name.get(name)
        if file_name is None:
            raise ModelInvalid(f"{self._directory.name}: tensor {name!r} is missing")
        return self._opened(file_name)

    def _opened(self, file_name: str) -> SafetensorsFile:
        """Each header is read once: it is as long as there are tensors."""
        file = self._opened_by_name.get(file_name)
        if file is None:
            try:
                file = open_safetensors(self._directory / file_name)
            except OSError as exc:
                raise ModelInvalid(f"{file_name}: {exc}") from exc
            self._opened_by_name[file_name] = file
        return file

    def _read_index(self) -> dict[str, str]:
        index_path = self._directory / _INDEX
        if index_path.exists():
            try:
                return msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map
            except UNDECODABLE as exc:
                raise ModelInvalid(f"{_INDEX}: {exc}") from exc
        if not (self._directory / _SINGLE).exists():
            raise ModelNotFound(f"{self._directory}: neither {_SINGLE} nor {_INDEX} is there")
        return dict.fromkeys(self._opened(_SINGLE).entries, _SINGLE)
