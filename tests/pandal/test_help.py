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
    words = " ".join(shown.replace("│", " ").split())  # however the terminal breaks the lines
    described = words.split(f" {option} ", 1)[1].split(" --", 1)[0]
    assert f"[default: ({default})]" in described
