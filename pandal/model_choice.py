"""Which model file the fleet will serve, and by what name, before anything is downloaded."""

from dataclasses import dataclass
from pathlib import Path

from pandal.errors import PreflightFailed

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    model: str  # a name or a path, as replicas take it
    served_name: str  # what clients and price books call it
    must_download: bool = False


def choose_model(model: str, cache_dir: Path) -> ModelChoice:
    """Raises PreflightFailed unless ``model`` is a known name, a .gguf file or a model folder."""
    path = Path(model)
    if path.exists():
        return ModelChoice(str(path.resolve()), path.resolve().name.removesuffix(".gguf"))
    if model.lower() == DEFAULT_MODEL.lower():
        return ModelChoice(DEFAULT_MODEL, DEFAULT_MODEL, must_download=True)
    raise PreflightFailed(f"--model: no such file or known model: {model!r}")
