"""The generator as a user runs it, against a server of known latencies in its own process."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("scripted_upstream.py")


@dataclass(frozen=True)
class ScriptedServer:
    url: str

    def seen(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/seen") as answer:
            return list(json.load(answer))


StartServer = Callable[..., ScriptedServer]
PLENTY = 100_000


@contextmanager
def scripted_server(
    ttft_s: float, gap_s: float, *, num_slots: int = PLENTY
) -> Iterator[ScriptedServer]:
    command = (sys.executable, str(SERVER), str(ttft_s), str(gap_s), str(num_slots))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield ScriptedServer(f"http://127.0.0.1:{port}")
        finally:
            process.kill()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    with ExitStack() as stack:
        yield lambda *times_s, **more: stack.enter_context(scripted_server(*times_s, **more))


def run_bench(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "pandal", "bench", *arguments)
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
