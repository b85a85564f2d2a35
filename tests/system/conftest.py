"""Whole fleets: over a fast fake model server for each test, with the real model for a session."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually
from tests.system.fleet_process import FleetProcess

ROOT = Path(__file__).parents[2]
UPSTREAM = "tests.system.upstream_server"
StartFleet = Callable[..., FleetProcess]


@contextmanager
def upstream(*options: str) -> Iterator[str]:
    port = free_port()
    command = (sys.executable, "-m", UPSTREAM, str(port), *options)
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            eventually(lambda: is_listening(port), "the upstream never listened")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture(scope="session")
def upstream_url() -> Iterator[str]:
    with upstream() as url:
        yield url


@pytest.fixture
def uncounted_upstream_url() -> Iterator[str]:
    with upstream("uncounted") as url:
        yield url


@pytest.fixture
def start_fleet(upstream_url: str, tmp_path: Path) -> Iterator[StartFleet]:
    """Starts ``pandal up`` over the fake model server; every one started is ended."""
    started: list[FleetProcess] = []

    def start(*options: str, data_dir: Path | None = None, port: int | None = None) -> FleetProcess:
        fleet = FleetProcess.start(
            tmp_path / "data" if data_dir is None else data_dir,
            *("--dev-replica", upstream_url),
            *options,
            port=port,
        )
        started.append(fleet)
        return fleet

    yield start
    for fleet in started:
        fleet.end()
