"""Servers for benchmarks: a process of its own on a free port, up for the length of a ``with``."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.waiting import wait_until
from replica.settings import Settings

START_PATIENCE_S = 240.0
STOP_PATIENCE_S = 60.0
REPLICA = (sys.executable, "-m", "replica")


@dataclass(frozen=True, slots=True)
class Server:
    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def replica(**settings: object) -> Iterator[Server]:
    """Ready to answer.  Settings by their names: ``model="...", max_num_seqs=16``.

    Raises ValueError for one that there is not: in an environment it would go unnoticed.
    """
    if unknown := sorted(settings.keys() - Settings.model_fields.keys()):
        raise ValueError(f"the replica has no settings {unknown}")
    given = {"port": "{port}", **settings}
    environment = {f"REPLICA_{name.upper()}": str(value) for name, value in given.items()}
    with tempfile.TemporaryFile() as log, started(REPLICA, environment, log) as server:
        _wait_ready(server, log)
        yield server


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes] | int
) -> Iterator[Server]:
    """Perhaps not ready yet.  ``{port}`` in command and environment stands for the port."""
    port = free_port()
    values = {name: value.replace("{port}", str(port)) for name, value in environment.items()}
    process = subprocess.Popen(
        [part.replace("{port}", str(port)) for part in command],
        env=os.environ | values,
        stdout=log,
        stderr=log,
    )
    try:
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait(STOP_PATIENCE_S)


def family(pid: int) -> Iterator[int]:
    """The process and all that descend from it."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))
    except OSError:
        return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_ready(server: Server, log: IO[bytes]) -> None:
    def is_ready() -> bool:
        if server.process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the server ended before it was ready: {log.read().decode()}")
        return _is_ready(server.port)

    wait_until(is_ready, "the server to be ready", START_PATIENCE_S)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
