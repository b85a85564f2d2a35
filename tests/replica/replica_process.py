"""A real ``python -m replica`` on a free port, and what tests ask it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.waiting import eventually

_START_PATIENCE_S = 600.0  # compiles its kernels the first time; the test's own limit is less


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ReplicaProcess:
    """Use as a context manager: it ends the process it started."""

    def __init__(self, log_path: Path, **settings: object) -> None:
        self.port = free_port()
        self.log_path = log_path
        environment = os.environ | {"REPLICA_PORT": str(self.port)}
        environment |= {f"REPLICA_{name.upper()}": str(value) for name, value in settings.items()}
        with log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replica"], env=environment, stderr=log
            )

    def __enter__(self) -> "ReplicaProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = children.read_text().split()
        return int(pid)

    def connect(self) -> http.client.HTTPConnection:
        """The caller closes it."""
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Bytes go out as they are, everything else as JSON."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            connection.request(
                method, path, payload if body is not None else None, dict(headers or {})
            )
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def metric(self, name: str) -> float:
        match = re.search(
            rf"^{re.escape(name)}\{{.*\}} (\S+)$", self.get("/metrics").body.decode(), re.M
        )
        assert match is not None, f"no metric {name}"
        return float(match[1])

    def wait_ready(self) -> list[dict[str, Any]]:
        """The states seen on the way, each once."""
        states: list[dict[str, Any]] = []

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            try:
                answer = self.get("/ready")
            except ConnectionRefusedError:
                return False
            if answer.json not in states:
                states.append(answer.json)
            return answer.status == 200

        eventually(is_ready, "a ready replica", patience_s=_START_PATIENCE_S)
        return states

    def wait_metric(self, name: str, value: float) -> None:
        eventually(lambda: self.metric(name) == value, f"{name} to be {value:g}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def events(response: http.client.HTTPResponse) -> list[Any]:
    """All server-sent events to the end; "[DONE]" stands as it is."""
    payloads = [e.removeprefix(b"data: ") for e in response.read().split(b"\n\n") if e]
    return [p.decode() if p == b"[DONE]" else json.loads(p) for p in payloads]


def next_event(response: http.client.HTTPResponse) -> Any:
    line = response.readline()
    assert line.startswith(b"data: "), line
    assert response.readline() == b"\n"
    return json.loads(line.removeprefix(b"data: "))
