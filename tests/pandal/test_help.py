"""What ``--help`` says of options that decide by themselves; that what documents name is there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from pandal.cli import app
from tests.pandal.command_line import pandal

_ROOT: Final = Path(__file__).parents[2]
_NAMED: Final = re.compile(
    r"(?:`|\.venv/bin/|^)pandal ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE
)


@pytest.mark.parametrize(
    ("command", "option", "default"),
    [
        (("up",), "--data-dir", "~/.local/share/pandal"),
        (("keys", "create"), "--data-dir", "~/.local/share/pandal"),
        (("bill",), "--data-dir", "~/.local/share/pandal"),
        (("bill",), "--month", "the current one"),
    ],
    ids=str,
)
def test_a_default_is_shown(command: tuple[str, ...], option: str, default: str) -> None:
    shown = pandal(*command, "--help", COLUMNS="120").stdout
    words = " ".join(shown.replace("│", " ").split())  # however the terminal breaks the lines
    described = words.split(f" {option} ", 1)[1].split(" --", 1)[0]
    assert f"[default: ({default})]" in described


def test_each_command_that_a_document_names_is_there() -> None:
    named = set(_named_commands())
    assert ("prices", "dry-run") in named
    assert [words for words in sorted(named) if not _is_there(words)] == []


def _named_commands() -> Iterator[tuple[str, str]]:
    """Its second word is empty, a subcommand, or an argument."""
    for document in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))):
        for found in _NAMED.finditer(document.read_text(encoding="utf-8")):
            yield found[1], found[2] or ""


def _is_there(words: tuple[str, str]) -> bool:
    first, second = words
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    command = group.commands.get(first)
    if isinstance(command, TyperGroup):
        return not second or second in command.commands
    return command is not None
