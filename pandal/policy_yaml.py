"""Policy documents as YAML, for people and their repositories."""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from contracts.errors import ContractError
from contracts.policy import PolicyDocument
from contracts.policy_text import from_plain, to_plain
from pandal.errors import BadOption

_STANDARD_INPUT: Final = Path("-")
# What the parser, and JSON's encoder, raise for a value that is not of its tag.
_IMPOSSIBLE: Final = (ValueError, TypeError, LookupError, AttributeError)


def to_yaml(document: PolicyDocument) -> str:
    """Without the version: a repository has its own."""
    plain = {name: value for name, value in to_plain(document).items() if name != "version"}
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))


def from_yaml(text: str, name: str) -> PolicyDocument:
    """JSON as well.  Raises BadOption, naming the line or the path of the fault."""
    try:
        plain: Any = yaml.safe_load(text)  # whatever somebody wrote
        return from_plain({} if plain is None else plain)
    except yaml.YAMLError as exc:
        raise BadOption(f"{name}: {' '.join(str(exc).split())}") from exc
    except ContractError as exc:
        raise BadOption(f"{name}: {exc}") from exc
    except RecursionError as exc:
        raise BadOption(f"{name}: expected fewer levels, and nothing within itself") from exc
    except UnicodeEncodeError as exc:
        raise BadOption(f"{name}: holds half a character, such as \\ud800") from exc
    except _IMPOSSIBLE as exc:
        raise BadOption(f"{name}: holds a number, a date or a name that cannot be") from exc


def read_yaml(path: Path) -> PolicyDocument:
    """Raises BadOption."""
    return from_yaml(yaml_text(path), name_of(path))


def name_of(path: Path) -> str:
    return "standard input" if path == _STANDARD_INPUT else str(path)


def yaml_text(path: Path) -> str:
    """``-``: of standard input.  Raises BadOption."""
    try:
        if path == _STANDARD_INPUT:
            return _standard_input().decode()
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise BadOption(f"{name_of(path)}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BadOption(f"{name_of(path)}: cannot be read: it is no text in UTF-8") from exc


def _standard_input() -> bytes:
    if sys.stdin is None:  # as a program may be started
        raise BadOption("standard input: cannot be read: it is closed")
    return sys.stdin.buffer.read()
