"""What can be known to be wrong from the command line and the installation alone.

Imports nothing that an extra brings: it is here to say which extra is missing.
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Final

from pandal.errors import BadOption, PreflightFailed
from pandal.http_client import parse_url
from pandal.plan import UpOptions
from pandal.settings import KAFKA_BOOTSTRAP

# Of a requirement in our own metadata: hiredis>=3.3; extra == "gateway"
_DISTRIBUTION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_ADAPTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")  # as replicas take names
_BROKER: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def check_options(options: UpOptions) -> None:
    """What needs nothing but the command line."""
    if options.num_replicas < 1:
        raise BadOption(f"--replicas: expected at least 1, got {options.num_replicas}")
    _check_autoscale(options)
    if not 1 <= options.port <= 65_535:
        raise BadOption(f"--port: expected 1 to 65535, got {options.port}")
    if options.adapters and options.dev_replica_urls:
        raise BadOption("--adapter: is loaded by own replicas, and cannot be by --dev-replica's")
    for url in options.dev_replica_urls:
        parse_url(url, option="--dev-replica")
    if options.kafka_bootstrap is not None:
        check_bootstrap(options.kafka_bootstrap)


def _check_autoscale(options: UpOptions) -> None:
    if options.autoscale_to is None:
        return
    if options.dev_replica_urls:
        raise BadOption("--autoscale: starts own replicas, and cannot start --dev-replica's")
    if options.autoscale_to < options.num_replicas:
        raise BadOption(
            f"--autoscale: expected at least --replicas ({options.num_replicas}), "
            f"got {options.autoscale_to}"
        )


def adapter_folders(options: Iterable[str]) -> dict[str, Path]:
    """Of NAME=FOLDER each.  Raises BadOption."""
    folders: dict[str, Path] = {}
    for option in options:
        name, is_there, folder = option.partition("=")
        if not is_there or not folder or _ADAPTER.fullmatch(name) is None:
            raise BadOption(f"--adapter: expected NAME=FOLDER, got {option!r}")
        if name in folders:
            raise BadOption(f"--adapter: {name!r} stands twice")
        folders[name] = Path(folder)
    return folders


def check_bootstrap(bootstrap: str) -> None:
    """Raises BadOption unless it is a list of HOST:PORT."""
    for broker in bootstrap.split(","):
        match = _BROKER.fullmatch(broker.strip())
        if match is None or not 1 <= int(match["port"]) <= 65_535:
            raise BadOption(
                f"{KAFKA_BOOTSTRAP}: expected Kafka brokers as HOST:PORT[,HOST:PORT], "
                f"got {bootstrap!r}"
            )


def check_installation(options: UpOptions) -> None:
    if sys.platform != "linux":
        raise PreflightFailed(f"'pandal up' runs on Linux, this is {sys.platform}")
    own = () if options.dev_replica_urls else ("replica",)
    admin = () if options.is_once else ("admin",)
    require_extras(("gateway", *admin, "billing", "local", *own))


def require_extras(extras: Iterable[str]) -> None:
    """Raises PreflightFailed with the command that installs all that is missing."""
    missing = {
        extra: [n for n in distributions_of(extra) if not _is_installed(n)] for extra in extras
    }
    missing = {extra: names for extra, names in missing.items() if names}
    if missing:
        names = ", ".join(sorted({name for names in missing.values() for name in names}))
        raise PreflightFailed(f"not installed: {names}; pip install 'pandal[{','.join(missing)}]'")


def distributions_of(extra: str) -> list[str]:
    """What this installation of ours says that ``extra`` brings."""
    found = []
    for requirement in requires("pandal") or ():
        marker = _EXTRA.search(requirement.partition(";")[2])
        name = _DISTRIBUTION.match(requirement)
        if name is not None and marker is not None and marker[1] == extra:
            found.append(name[0])
    return found


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
