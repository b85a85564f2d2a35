"""How long a replica takes from nothing to its first token, and what it does meanwhile.

    python -m benchmarks.startup [--model SmolLM2-135M-Instruct] [--runs 5]

Kernels are compiled and files are in the page cache before: one start is not counted.  The parts
are what ``GET /ready`` says, asked every few milliseconds; a part that is over before anybody asks
counts to the one before.  What each of the two processes imports is measured apart, beginning with
nothing each time, and is part of its part.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.replica_process import REPLICA, Server, started
from benchmarks.waiting import wait_until

POLL_S: Final = 0.004
PATIENCE_S: Final = 240.0
IMPORTS: Final = {
    "imports before the engine starts": ("replica.serve",),
    "imports while it does": ("replica.http_server",),
    "imports of the engine": (
        "replica.engine.process",
        "replica.engine.worker",
        "replica.engine.compiled_backend",
    ),
}
UNANSWERED: Final = "the port does not answer"
FIRST_TOKEN: Final = "first token"


@dataclass(frozen=True, slots=True)
class Start:
    seconds_by_part: dict[str, float]  # in their order
    ready_s: float
    first_token_s: float


def asked(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes] | None:
    """Status and body; None: nobody listens yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


def part_of(answer: tuple[int, bytes] | None) -> str:
    if answer is None:
        return UNANSWERED
    state = json.loads(answer[1])
    return f"{state['phase']}: {state['detail']}".rstrip(": ")


def watch(server: Server, began_s: float) -> Start:
    seconds_by_part: dict[str, float] = {}
    part, since_s = UNANSWERED, began_s

    def is_ready() -> bool:
        nonlocal part, since_s
        if server.process.poll() is not None:
            raise RuntimeError("the replica did not become ready")
        answer = asked(server.port, "GET", "/ready")
        now_s = time.perf_counter()
        is_ready = answer is not None and answer[0] == 200
        if is_ready or part_of(answer) != part:
            seconds_by_part[part] = seconds_by_part.get(part, 0.0) + now_s - since_s
            part, since_s = part_of(answer), now_s
        return is_ready

    wait_until(is_ready, "the replica to be ready", PATIENCE_S, interval_s=POLL_S)
    asked(server.port, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 1})
    ended_s = time.perf_counter()
    seconds_by_part[FIRST_TOKEN] = ended_s - since_s
    return Start(seconds_by_part, since_s - began_s, ended_s - began_s)


def start_once(model: str) -> Start:
    environment = {"REPLICA_PORT": "{port}", "REPLICA_MODEL": model}
    began_s = time.perf_counter()
    with started(REPLICA, environment, subprocess.DEVNULL) as server:
        return watch(server, began_s)


def import_seconds(modules: Sequence[str]) -> float:
    code = f"import time; t = time.perf_counter(); import {', '.join(modules)}\n"
    code += "print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, check=True).stdout)


def print_table(starts: Sequence[Start], imports: dict[str, list[float]]) -> None:
    print(f"{len(starts)} starts, {os.cpu_count()} cores; seconds, median (least)\n")

    def row(name: str, seconds: Sequence[float]) -> None:
        print(f"{name:45s} {statistics.median(seconds):6.2f} ({min(seconds):.2f})")

    for part in starts[0].seconds_by_part:
        row(part, [start.seconds_by_part.get(part, 0.0) for start in starts])
    row("in all: ready", [start.ready_s for start in starts])
    row("in all: first token", [start.first_token_s for start in starts])
    print()
    for name, seconds in imports.items():
        row(name, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    start_once(options.model)
    starts = [start_once(options.model) for _ in range(options.runs)]
    imports = {
        name: [import_seconds(modules) for _ in range(options.runs)]
        for name, modules in IMPORTS.items()
    }
    print_table(starts, imports)


if __name__ == "__main__":
    main()
