"""Which model file the fleet will serve, and by what name, before anything is downloaded."""

from dataclasses import dataclass
from pathlib import Path

from pandal.errors import PreflightFailed
from replica.errors import ModelError
from replica.model.store import default_cache_dir, is_known, model_name, resolve


@dataclass(frozen=True, slots=True)
class ModelChoice:
    model: str  # a name or an absolute path, as replicas take it
    served_name: str  # what clients and price books call it


def model_cache_dir(chosen: Path | None) -> Path:
    return default_cache_dir() if chosen is None else chosen


def choose_model(model: str, cache_dir: Path) -> ModelChoice:
    """Raises PreflightFailed unless ``model`` is a known name, a .gguf file or a model folder."""
    name = model_name(model)
    if is_known(model):
        return ModelChoice(name, name)  # the replica fetches it, and shows its progress
    try:
        path = resolve(model, cache_dir, lambda ratio: None)
    except ModelError as exc:
        raise PreflightFailed(f"--model: {exc}") from exc
    return ModelChoice(str(path.absolute()), name)
