"""A gateway that is set up wrongly says so, in one line, and without its secrets."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.environment import BadSettings, read_settings
from gateway.settings import Settings
from tests.gateway.processes import PEPPER

GOOD = {
    "PATH": os.environ["PATH"],
    "GATEWAY_POLICY_FILE": "/nowhere/policy.json",
    "GATEWAY_KEY_PEPPER": PEPPER,
    "GATEWAY_QUOTA_URL": "unix:///nowhere/quota.sock",
}


def run(folder: Path, **settings: str) -> tuple[int, list[dict[str, object]], str]:
    """(exit status, log lines, everything that was printed)."""
    environment = {**GOOD, "GATEWAY_SPOOL_DIR": str(folder / "spool"), **settings}
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env={name: value for name, value in environment.items() if value},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    printed = done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in printed.splitlines()], printed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_PROVIDERS", '[{"name":"a","url":"https://hunter2@a","api_key":"hunter2"}]'),
        ("GATEWAY_POLICY_FILE", ""),
        ("GATEWAY_KEY_PEPPER", "too-short"),
        ("GATEWAY_QUOTA_URL", "http://user:hunter2@host"),
        ("GATEWAY_QUOTA_URL", "redis://user:hunter2/x@host:6379"),
        ("GATEWAY_REPLICAS", '[{"name": "a", "url": "ftp://x"}]'),
        ("GATEWAY_REPLICAS", '[{"name":"a","url":"http://a:1"},{"name":"a","url":"http://b:1"}]'),
        ("GATEWAY_PORT", "99999"),
        ("GATEWAY_DRAIN_TIMEOUT_S", "soon"),
        ("GATEWAY_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_setting_is_named_and_not_shown(tmp_path: Path, name: str, value: str) -> None:
    status, lines, printed = run(tmp_path, **{name: value})
    assert status == 2
    assert str(lines[0]["path"]).split(".")[0] == name
    assert "hunter2" not in printed
    assert "too-short" not in printed


def test_a_list_that_is_not_json_is_told_without_a_traceback(tmp_path: Path) -> None:
    status, lines, printed = run(tmp_path, GATEWAY_REPLICAS="http://localhost:8000")
    assert status == 2
    assert lines[0]["path"] == "GATEWAY_REPLICAS"
    assert str(lines[0]["error"]).startswith("expected JSON, such as [{")
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", ["GATEWAY_PROVIDERS", "GATEWAY_REPLICAS"])
def test_the_example_of_a_list_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in GOOD.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv(name, "openai")
    with pytest.raises(BadSettings) as caught:
        read_settings(Settings, "GATEWAY_", {})
    monkeypatch.setenv(name, caught.value.faults[name].removeprefix("expected JSON, such as "))
    with pytest.raises(BadSettings) as caught:
        read_settings(Settings, "GATEWAY_", {})
    assert name not in str(caught.value.faults)


def test_a_misspelt_variable_is_named_with_what_was_meant(tmp_path: Path) -> None:
    status, lines, printed = run(tmp_path, GATEWAY_DRAIN_TIMEOUT="hunter2", GATEWAY_POLICY_FILE="")
    assert status == 2
    told = {str(line["path"]): line["error"] for line in lines}
    assert set(told) == {"GATEWAY_POLICY_FILE", "GATEWAY_DRAIN_TIMEOUT"}
    assert told["GATEWAY_DRAIN_TIMEOUT"] == (
        "there is no such setting; did you mean GATEWAY_DRAIN_TIMEOUT_S?"
    )
    assert "hunter2" not in printed


def test_a_spool_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, lines, _ = run(tmp_path, GATEWAY_SPOOL_DIR=str(tmp_path / "file" / "spool"))
    assert status == 2
    assert lines[-1]["message"] == "gateway cannot start"
    assert str(tmp_path) in str(lines[-1]["path"])


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, lines, _ = run(tmp_path, GATEWAY_PORT=str(taken.getsockname()[1]))
    assert status == 3
    assert "address already in use" in json.dumps(lines)
