"""A path to a model in memory: dispatches on the kind of files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from contracts.errors import UNDECODABLE
from replica.errors import ModelError, ModelInvalid
from replica.model.adapter_file import Adapter, read_adapter
from replica.model.config import LlamaConfig, config_from_gguf, config_from_hf
from replica.model.damage import blaming
from replica.model.gguf_file import GgufFile
from replica.model.gguf_loader import GgufTensors, with_rope
from replica.model.int4_tensors import Int4Tensors, int4_method
from replica.model.safetensors_loader import SafetensorsDirectory
from replica.model.tensor_source import TensorSource, assembles_tied

if TYPE_CHECKING:
    from replica.model.llama import LlamaModel


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Its shape is known; its weights are still on disk."""

    path: Path
    config: LlamaConfig
    source: TensorSource
    adapters: Sequence[Adapter] = ()

    @property
    def weights_bytes(self) -> int:
        """In memory, as float32."""
        is_tied = assembles_tied(self.config, self.source.names())
        return 4 * self.config.num_weights(is_tied=is_tied)

    def load(self, report_progress: Callable[[float], None]) -> "LlamaModel":
        """Raises ModelError."""
        # Not at the top: torch takes seconds and 300 MB, and the compiled step needs none of it.
        from replica.model.llama import LlamaModel
        from replica.model.weights import assemble

        with blaming(self.path):
            return LlamaModel(self.config, assemble(self.source, self.config, report_progress))


def open_adapted(path: Path, adapters: Mapping[str, Path]) -> OpenedModel:
    """``adapters``: folders by name.  Their numbers are in memory.

    Raises ModelError, as the next one does.
    """
    opened = open_model(path)
    read = [_adapter(name, folder, opened.config) for name, folder in adapters.items()]
    return replace(opened, adapters=read)


def _adapter(name: str, folder: Path, model: LlamaConfig) -> Adapter:
    try:
        with blaming(folder):
            return read_adapter(folder, model)
    except ModelError as exc:
        raise type(exc)(f"adapter {name}: {exc}") from exc


def open_model(path: Path) -> OpenedModel:
    """Raises ModelError, and nothing else for whatever stands in the files."""
    with blaming(path):
        if path.is_dir():
            return _open_directory(path)
        file = GgufFile(path)
        config = with_rope(config_from_gguf(file.metadata), file)
        return OpenedModel(path, config, GgufTensors(file, config))


def _open_directory(path: Path) -> OpenedModel:
    stated, directory = _hf_config(path), SafetensorsDirectory(path)
    config, method = config_from_hf(stated), int4_method(stated)
    source = directory if method is None else Int4Tensors(directory, method)
    return OpenedModel(path, config, source)


def _hf_config(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, object])
    except (OSError, *UNDECODABLE) as exc:
        raise ModelInvalid(f"{path.name}: config.json: {exc}") from exc
