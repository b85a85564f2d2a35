"""``pandal up`` as a user runs it, and what there is to see of it from outside."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandal.datadir import DataDir
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, eventually

PANDAL = (sys.executable, "-m", "pandal")
MARK = "XDG_STATE_HOME"  # read by none of a fleet's processes, and passed on to all of them


def run_pandal(
    *arguments: str, data_dir: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = (*PANDAL, *arguments, "--data-dir", str(data_dir))
    whole = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=whole)


def create_key(data_dir: Path, tenant: str, *options: str) -> str:
    result = run_pandal("keys", "create", "--tenant", tenant, "--json", *options, data_dir=data_dir)
    assert result.returncode == 0, result.stderr
    assert "accepted by" in result.stderr
    return str(json.loads(result.stdout)["api_key"])


def processes_of(data_dir: Path) -> list[str]:
    """Command lines of all living processes, at any depth, of fleets started on ``data_dir``.

    Valkey writes its title over its environment; the title names its socket.
    """
    mark = os.fsencode(f"{MARK}={data_dir}")
    folders = (os.fsencode(data_dir), os.fsencode(DataDir(data_dir).sockets))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if mark in environment or any(folder in command for folder in folders):
            found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


@dataclass(frozen=True)
class FleetProcess:
    """A running ``pandal up``.  Its screen is a file: nobody has to read for it to go on."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    url: str
    screen_path: Path

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *options: str,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "FleetProcess":
        port = free_port() if port is None else port
        data_dir.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix="screen-", dir=data_dir.parent)
        os.close(number)
        screen_path = Path(name)
        command = (*PANDAL, "up", "--data-dir", str(data_dir), "--port", str(port), *options)
        with screen_path.open("wb") as screen:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: str(data_dir), **(environment or {})},
                start_new_session=True,
            )
        return cls(process, data_dir, f"http://127.0.0.1:{port}", screen_path)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def screen(self) -> str:
        return self.screen_path.read_text()

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.data_dir / "fleet.json").read_text()))

    def child_pid(self, name: str) -> int:
        return int(self.state()["children"][name]["pid"])

    def wait_until_serving(self) -> None:
        eventually(
            lambda: "Ctrl-C stops" in self.screen or self.process.poll() is not None,
            "the fleet never served",
        )
        assert self.process.poll() is None, self.screen

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """For fixtures: whatever has become of it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
