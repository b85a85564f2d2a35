"""The command line as a user runs it, and what a refusal looks like."""

import os
import subprocess
import sys

from pandal.datadir import DataDir

PANDAL = (sys.executable, "-m", "pandal")
# Runs the command line as ``pandal`` does, after a line of the test's own.
PREPARED = "import sys; {}; sys.argv[0] = 'pandal'; from pandal.__main__ import main; main()"


def pandal(
    *arguments: str, prepare: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    start = PANDAL if prepare is None else (sys.executable, "-c", PREPARED.format(prepare))
    return subprocess.run(
        (*start, *arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_refused(
    result: subprocess.CompletedProcess[str], code: int, text: str, data_dir: DataDir
) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("pandal: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr
    assert not data_dir.fleet.exists()
    assert not data_dir.logs.is_dir() or not any(data_dir.logs.iterdir())
