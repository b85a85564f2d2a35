"""How many Python calls and bytecodes a request costs the gateway: the same on any machine.

    python -m benchmarks.gateway_counts [--chunks N | --refused | --shed] [--functions 40]

As ``gateway_steps``, but that the interpreter is asked to tell of each call and each bytecode.  A
coroutine that goes on counts as a call.  What the threads of log and spool do is not counted.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.gateway_steps import (
    ROOT,
    Load,
    parser_of,
    run,
    settings_for,
)
from gateway.app import create_app
from gateway.client_connection import ConnectionLimits
from gateway.line_writer import LineWriter
from gateway.server import GatewayServer, Listener

NUM_WARM_UP = 2_000
_OWN_FILES = str(ROOT / "benchmarks")


class Tally:
    """Of all frames but this benchmark's, while it is entered."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.bytecodes: Counter[CodeType] = Counter()

    def __enter__(self) -> "Tally":
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event != "call" or code.co_filename.startswith(_OWN_FILES):
            return None
        self.calls[code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.bytecodes[frame.f_code] += 1
        return self._on_event


async def count(folder: Path, load: Load, options: argparse.Namespace) -> Tally:
    log = LineWriter(os.open(os.devnull, os.O_WRONLY))
    settings = settings_for(folder, options)
    settings = settings.model_copy(update={"poll_interval_s": 3_600.0})  # who waits need not hurry
    async with create_app(settings, log.write) as gateway:
        listener = Listener("127.0.0.1", 0, 75, 20.0, 0.0)
        server = GatewayServer(gateway, listener, ConnectionLimits(8 << 20, 60.0, 60.0, 60.0))
        server.config.load()
        while gateway.readiness.reasons_not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(options.connections):
            load.connect(server)
        await load.run(NUM_WARM_UP)
        with Tally():  # as slow as what is counted: else it would be routed otherwise
            await load.run(options.requests)
        with Tally() as tally:
            await load.run(options.requests)
        if load.failures and not (options.refused or options.shed):
            sys.exit(f"failed: {dict(load.failures)}")
        return tally


def print_table(tally: Tally, options: argparse.Namespace) -> None:
    num_requests = options.requests
    for code, calls in tally.calls.most_common(options.functions):
        path = code.co_filename.removeprefix(f"{ROOT}/")
        bytecodes = tally.bytecodes[code] / num_requests
        print(f"{calls / num_requests:7.2f} {bytecodes:8.1f}  {path}:{code.co_qualname}")
    calls, bytecodes = tally.calls.total() / num_requests, tally.bytecodes.total() / num_requests
    print(f"a request: {calls:.1f} calls, {bytecodes:.0f} bytecodes")
    if options.chunks:
        per_chunk = options.chunks
        print(f"a chunk: {calls / per_chunk:.2f} calls, {bytecodes / per_chunk:.1f} bytecodes")


def main() -> None:
    parser = parser_of(__doc__.partition("\n")[0], 400)
    parser.add_argument("--functions", type=int, default=0, help="the most called to list")
    options = parser.parse_args()
    print_table(run(count, options), options)


if __name__ == "__main__":
    main()
