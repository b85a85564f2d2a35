"""What ``--help`` says of the options that decide by themselves."""

import pytest

from tests.pandal.command_line import pandal


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
    line = next(line for line in shown.splitlines() if option in line)
    assert f"[default: ({default})]" in line
