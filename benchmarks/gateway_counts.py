"""How many Python calls and bytecodes a request costs the gateway: the same on any machine.

    python -m benchmarks.gateway_counts [--chunks N | --refused | --shed] [--functions 40]

As ``gateway_steps``, but that the interpreter is asked to tell of each call and each bytecode.  A
coroutine that goes on counts as a call.  What the threads of log and spool do is not counted.
Counting makes the code some thirty times slower; time passes as much slower meanwhile, so that what
happens so often a second happens as seldom between two requests as at full speed.
"""

import argparse
import asyncio
import os
import sys
import time
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
from gateway.clock import Clock
from gateway.line_writer import LineWriter
from gateway.server import GatewayServer, Listener

NUM_WARM_UP = 4_000
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


class SlowTime:
    """Seconds that take longer than a second."""

    def __init__(self) -> None:
        self._began_s = self._began_real_s = time.monotonic()
        self._slowness = 1.0

    def slow_down(self, slowness: float) -> None:
        self._began_s, self._began_real_s = self.monotonic_s(), time.monotonic()
        self._slowness = slowness

    def monotonic_s(self) -> float:
        return self._began_s + (time.monotonic() - self._began_real_s) / self._slowness


async def cpu_of(load: Load, num_requests: int) -> float:
    """In seconds a request."""
    began_s = time.thread_time()
    await load.run(num_requests)
    return (time.thread_time() - began_s) / num_requests


async def count(folder: Path, load: Load, options: argparse.Namespace) -> Tally:
    log = LineWriter(os.open(os.devnull, os.O_WRONLY))
    settings = settings_for(folder, options)
    settings = settings.model_copy(update={"poll_interval_s": 3_600.0})  # who waits need not hurry
    slow_time = SlowTime()
    clock = Clock(time.time, slow_time.monotonic_s)
    async with create_app(settings, log.write, clock) as gateway:
        listener = Listener("127.0.0.1", 0, 75, 20.0, 0.0)
        server = GatewayServer(gateway, listener, ConnectionLimits(8 << 20, 60.0, 60.0, 60.0))
        server.config.load()
        while gateway.readiness.reasons_not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(options.connections):
            load.connect(server)
        uncounted_s = await cpu_of(load, NUM_WARM_UP)
        with Tally():
            counted_s = await cpu_of(load, options.requests)
        load.loop.slowness = counted_s / uncounted_s
        slow_time.slow_down(load.loop.slowness)
        with Tally():  # until what began before has ended
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
