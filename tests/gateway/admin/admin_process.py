"""``python -m gateway.admin`` on a free port, and plain HTTP to it."""

import http.client
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.processes import PEPPER, whole_lines
from tests.support.waiting import PATIENCE_S, eventually

TOKENS = {role: f"{role}-{'x' * 32}" for role in ("viewer", "operator", "owner")}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class AdminProcess:
    """In front of the policy of ``settings``."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self._log_path = folder / "admin.log"
        static = [{"name": f"a-{role}", "token": t, "role": role} for role, t in TOKENS.items()]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "ADMIN_PORT": "0",
            "ADMIN_KEY_PEPPER": PEPPER,
            "ADMIN_STATIC_TOKENS": json.dumps(static),
            **settings,
        }
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway.admin"],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[3],
            )
        self.port = 0
        eventually(self._is_listening, "the admin API to listen")

    def stop(self) -> int:
        """The exit code."""
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str = "owner",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        token = TOKENS.get(role, role)
        sent = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, f"/admin/v1{path}", payload, {**sent, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def log(self) -> str:
        return self._log_path.read_text()

    def told(self, message: str) -> list[dict[str, Any]]:
        """Its log's lines of that kind."""
        lines = map(json.loads, whole_lines(self._log_path))
        return [line for line in lines if line["message"] == message]

    def metrics(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()

    def _is_listening(self) -> bool:
        assert self._process.poll() is None, self.log()
        ports = [line["port"] for line in self.told("listening")]
        if ports:
            self.port = ports[-1]
        return bool(ports) and self._answers()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
