"""The service's start: what is set up wrongly is told by name, with status 2."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler.settings import Settings


def started(**settings: object) -> tuple[int, list[dict[str, object]]]:
    """Exit status and log lines."""
    environment = {f"AUTOSCALER_{k}".upper(): str(v) for k, v in settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler"],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def test_a_missing_and_a_misspelt_setting_are_named() -> None:
    status, told = started(namespac="chat")
    assert status == 2
    assert {line["path"] for line in told} == {"AUTOSCALER_NAMESPACE", "AUTOSCALER_NAMESPAC"}


def test_outside_a_pod_a_kubeconfig_is_asked_for_and_lease_times_must_be_safe() -> None:
    status, (told,) = started(namespace="chat")
    assert (status, told["message"]) == (2, "autoscaler cannot start")
    status, (told,) = started(namespace="chat", lease_duration_s=10)
    assert status == 2
    assert "renew_deadline_s" in str(told["error"])


def test_a_period_longer_than_a_watch_is_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="period_s"):
        Settings(namespace="chat", period_s=301)


@pytest.mark.parametrize("port", [0, 65_536])
def test_a_port_of_prometheus_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="prometheus_url"):
        Settings(namespace="chat", prometheus_url=f"http://prometheus:{port}")


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, told = started(namespace="chat", kubeconfig=config, port=port)
    assert status == 2
    assert "ddress already in use" in str(told[-1]["error"])
