"""A replica that is set up wrongly says so by the name of the variable, and does not start."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("REPLICA_PORT", "99999", "less than or equal to 65535"),
        ("REPLICA_MODLE", "x.gguf", "did you mean REPLICA_MODEL?"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, error: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replica"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    line = json.loads(done.stderr.splitlines()[0])
    assert done.returncode == 2
    assert line["path"] == name
    assert error in line["error"]
