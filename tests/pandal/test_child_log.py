from pathlib import Path

import pytest

from pandal.child_log import last_error, rotate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("\n\n", None),
        ("one\ntwo\n\n", "two"),
        (
            '{"level": "critical", "message": "load failed", "error": "bad magic"}\n'
            '{"level": "info", "message": "stopped"}\n',
            "load failed: bad magic",
        ),
        (
            '{"level": "critical", "message": "bad setting", "path": "GATEWAY_PROT", '
            '"error": "there is no such setting"}\n',
            "bad setting: GATEWAY_PROT: there is no such setting",
        ),
        (
            '{"level": "error", "message": "tick failed", '
            '"traceback": "Traceback ...\\nValueError: x"}\n',
            "tick failed: ValueError: x",
        ),
        ("[1, 2]\n", "[1, 2]"),
        ("[" * 30_000, "[" * 300 + "…"),
        ("  | ValueError: in a group\n    +-------------\n", "ValueError: in a group"),
        ('{"level": "info", "message": "only this"}', None),
        ("\udcff broken\n", "� broken"),
    ],
)
def test_the_last_error_is_found(tmp_path: Path, text: str, expected: str | None) -> None:
    log = tmp_path / "child.log"
    log.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert last_error(log) == expected


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("x" * 100_000)
    assert last_error(log) == "x" * 300 + "…"


def test_a_log_that_is_not_there_has_no_error(tmp_path: Path) -> None:
    assert last_error(tmp_path / "child.log") is None


def test_the_log_of_the_launch_before_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    for text in ("first", "second"):
        rotate(log)
        log.write_text(text)
    assert log.read_text() == "second"
    assert (tmp_path / "child.log.1").read_text() == "first"
