"""A replica that is set up wrongly says so by the name of the variable, and does not start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from replica.engine.messages import Device
from replica.engine.worker import limits_of
from replica.http_server import CANCEL_TIMEOUT_S, CLOSE_TIMEOUT_S
from replica.serve import ENDING_S
from replica.settings import Settings, default_cache_dir


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


def test_a_replica_ends_within_kubernetes_usual_grace() -> None:
    closing_s = CLOSE_TIMEOUT_S + CANCEL_TIMEOUT_S
    assert Settings().drain_timeout_s + ENDING_S + closing_s < 30


def test_a_step_holds_what_its_device_takes_well() -> None:
    def step_tokens(**settings: Any) -> int:
        return Settings(**settings).engine_config().max_num_batched_tokens

    assert step_tokens() == 128
    assert step_tokens(device=Device.CUDA) == 2048
    assert step_tokens(device=Device.CUDA, max_num_batched_tokens=300) == 300
    assert step_tokens(max_num_seqs=200) == 200, "each decodes one token a step"
    with pytest.raises(ValueError, match="must be at least"):
        Settings(max_num_seqs=200, max_num_batched_tokens=199)


def test_default_cache_follows_the_desktop_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "pandal" / "models"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_cache_dir() == Path.home() / ".cache" / "pandal" / "models"


@pytest.mark.parametrize(("device", "ends_early"), [(Device.CPU, True), (Device.CUDA, False)])
def test_only_on_a_cpu_a_step_is_full_sooner_where_a_prompt_ends(
    device: Device, ends_early: bool
) -> None:
    """There the tokens of others take as long as one's own."""
    enough = limits_of(Settings(device=device).engine_config()).enough_prompt_tokens
    assert (enough is not None) == ends_early
