"""A data directory per test, and real child processes small enough to start many of."""

import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pandal.child import ChildExit, ChildSpec
from pandal.datadir import DataDir
from pandal.processes import ProcessId, identify
from tests.pandal.model_list import ModelList
from tests.support.ports import free_port


class RecordedReports:
    """What the supervisor told, in order."""

    def __init__(self) -> None:
        self.started_pids: list[tuple[str, int]] = []
        self.restarts: list[tuple[ChildExit, float]] = []

    def started(self, name: str, pid: int) -> None:
        self.started_pids.append((name, pid))

    def restarting(self, exit_: ChildExit, delay_s: float) -> None:
        self.restarts.append((exit_, delay_s))

    def processes(self) -> list[ProcessId]:
        found = [identify(pid) for _, pid in self.started_pids]
        return [process for process in found if process is not None]


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    directory = DataDir(tmp_path / "pandal")
    directory.create()
    return directory


@pytest.fixture
def reports() -> RecordedReports:
    return RecordedReports()


@pytest.fixture
def python_child(tmp_path: Path) -> Callable[..., ChildSpec]:
    """A child that runs the given Python source."""

    def make(source: str, name: str = "child", death_signal: int = 9) -> ChildSpec:
        return ChildSpec(
            name=name,
            command=(sys.executable, "-I", "-c", source),
            environment={},
            log_path=tmp_path / f"{name}.log",
            death_signal=death_signal,
        )

    return make


@pytest.fixture(name="free_port")
def given_port() -> int:
    return free_port()


@pytest.fixture
def dev_replica(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = getattr(request, "param", ModelList)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
