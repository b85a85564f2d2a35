"""A path to a model in memory: dispatches on the kind of files."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from replica.errors import ModelInvalid
from replica.model.config import config_from_gguf, config_from_hf
from replica.model.gguf_file import GgufFile
from replica.model.gguf_loader import GgufTensors
from replica.model.llama import LlamaModel
from replica.model.safetensors_loader import SafetensorsDirectory
from replica.model.weights import TensorSource, assemble


def load_model(path: Path, report_progress: Callable[[float], None]) -> LlamaModel:
    """Raises ModelError."""
    source: TensorSource
    if path.is_dir():
        config = config_from_hf(_hf_config(path))
        source = SafetensorsDirectory(path)
    else:
        file = GgufFile(path)
        config = config_from_gguf(file.metadata)
        source = GgufTensors(file, config)
    return LlamaModel(config, assemble(source, config, report_progress))


def _hf_config(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError) as exc:
        raise ModelInvalid(f"{path.name}: config.json: {exc}") from exc
