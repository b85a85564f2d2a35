"""Policy documents as YAML, for people and their repositories."""

from pathlib import Path
from typing import Any

import yaml

from contracts.errors import ContractError
from contracts.policy import PolicyDocument
from contracts.policy_text import from_plain, to_plain
from pandal.errors import BadOption


def to_yaml(document: PolicyDocument) -> str:
    """Without the version: a repository has its own."""
    plain = {name: value for name, value in to_plain(document).items() if name != "version"}
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))


def from_yaml(text: str, name: str) -> PolicyDocument:
    """JSON as well.  Raises BadOption, naming the line or the path of the fault."""
    try:
        plain: Any = yaml.safe_load(text)  # whatever somebody wrote
    except yaml.YAMLError as exc:
        raise BadOption(f"{name}: {' '.join(str(exc).split())}") from exc
    try:
        return from_plain({} if plain is None else plain)
    except ContractError as exc:
        raise BadOption(f"{name}: {exc}") from exc


def read_yaml(path: Path) -> PolicyDocument:
    """Raises BadOption."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadOption(f"{path}: cannot be read: {exc}") from exc
    return from_yaml(text, str(path))
