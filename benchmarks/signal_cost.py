"""What the signals of a request cost the gateway, in CPU time: each switched on beside the others.

    python -m benchmarks.signal_cost [--rounds 40] [--requests 500]

Gateways that differ in one signal are composed in one process, on the event loop of
``gateway_steps``, and take rounds of the same requests in turn.  What is counted is the process's
CPU time, so also that of the thread that writes the log.  A busy machine makes that dearer, never
cheaper: each row is the best of its rounds, and what it costs more than the row before.  Counters
cannot be switched off: their row is timed by itself.  So are, in the last column, the log line and
a span of every request, without the rest of the gateway: that repeats within a tenth where the
difference of two whole requests does not.  What the kernel takes for a post is not in it.
"""

import argparse
import asyncio
import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from benchmarks import gateway_peers as peers
from benchmarks.gateway_steps import (
    NUM_WARM_UP,
    Load,
    request_bytes,
    settings_for,
)
from benchmarks.loopback import LoopbackLoop, Wire
from contracts.usage import Outcome, UsageSource
from gateway.access_log import AccessLog
from gateway.api.context import Operation
from gateway.app import create_app
from gateway.client_connection import ConnectionLimits
from gateway.clock import SYSTEM_CLOCK
from gateway.exchange import Exchange
from gateway.line_writer import LineWriter
from gateway.metering import Usage
from gateway.metrics import Metrics
from gateway.request_head import request_head
from gateway.server import GatewayServer, Listener
from gateway.telemetry.otlp import encode_spans
from gateway.telemetry.tracer import Tracer

NUM_CLIENTS: Final = 16
NUM_COUNTED: Final = 5_120  # and again, ten times
NUM_REPEATS: Final = 10
_SPANS_A_POST: Final = 512  # as the exporter sends them
LOGGER: Final = "gateway.access_log"
TENANT: Final = "bench"  # as peers.write_policy calls it
COLLECTOR: Final = "http://127.0.0.1:4318"  # answered by the loop itself

# Each has what the one before it has, and one signal more.
SIGNALS: Final[Mapping[str, Mapping[str, Any]]] = {
    "counters and histograms": {"log_level": "warning"},
    "log line": {},
    "labels of the tenant": {"metrics_tenants": (TENANT,)},
    "traces, one in ten": {
        "metrics_tenants": (TENANT,), "otlp_url": COLLECTOR, "otlp_sample_ratio": 0.1
    },
    "traces, all": {
        "metrics_tenants": (TENANT,), "otlp_url": COLLECTOR, "otlp_sample_ratio": 1.0
    },
}  # fmt: skip


@asynccontextmanager
async def loaded(
    folder: Path, loop: LoopbackLoop, requests: Sequence[bytes], changes: Mapping[str, Any]
) -> AsyncIterator[Load]:
    """A gateway with these settings, and clients that know it."""
    quota_url = SecretStr(f"unix://{folder.parent}/quota.sock")
    settings = settings_for(folder).model_copy(update={"quota_url": quota_url, **changes})
    logging.getLogger(LOGGER).setLevel(settings.log_level.upper())
    log = LineWriter(os.open(os.devnull, os.O_WRONLY))
    async with create_app(settings, log.write) as gateway:
        server = GatewayServer(
            gateway,
            Listener("127.0.0.1", 0, 75, 20.0, 0.0),
            ConnectionLimits(8 << 20, 60.0, 60.0, 60.0),
        )
        server.config.load()
        while gateway.readiness.reasons_not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        load = Load(loop, requests)
        for _ in range(NUM_CLIENTS):
            load.connect(server)
        await load.run(NUM_WARM_UP)
        yield load


async def rounds_us(loads: Sequence[Load], num_rounds: int, num_requests: int) -> list[list[float]]:
    """A request's CPU time, by load and round; the loads take turns."""
    found: list[list[float]] = [[] for _ in loads]
    for number in range(num_rounds):
        for index in range(len(loads)):
            place = (index + number) % len(loads)  # nobody is always behind the same one
            load, times = loads[place], found[place]
            began_s = time.process_time()
            await load.run(num_requests)
            times.append((time.process_time() - began_s) * 1e6 / num_requests)
    return found


async def alone_us() -> dict[str, float]:
    """All signals of one request that was answered, by themselves, best of ten: by the last one."""
    line, all_traced = LineWriter(os.open(os.devnull, os.O_WRONLY)), Tracer(1.0)
    found, request_ids = {}, [f"req_{number:032x}" for number in range(NUM_COUNTED)]
    for name, level, write, tracer in (
        ("counters and histograms", logging.WARNING, lambda _: None, None),
        ("log line", logging.INFO, line.write, None),
        ("traces, all", logging.INFO, line.write, all_traced),
    ):
        logging.getLogger(LOGGER).setLevel(level)
        log = AccessLog(Metrics(), SYSTEM_CLOCK, write, tracer)
        times = []
        for _ in range(NUM_REPEATS):
            began_s = time.process_time()
            _answer(log, tracer, request_ids)
            times.append((time.process_time() - began_s) * 1e6 / NUM_COUNTED)
        found[name] = min(times)
    return found


def _answer(log: AccessLog, tracer: Tracer | None, request_ids: Sequence[str]) -> None:
    head = request_head(Operation.CHAT_COMPLETIONS, [])
    exchange = Exchange(Wire(LoopbackLoop(0).socket), head, lambda: None)
    usage = Usage(200, 0, 16, UsageSource.ENGINE)
    for number, request_id in enumerate(request_ids):
        trace = log.begin(request_id, exchange)
        came_s, meter = trace.started_monotonic_s, trace.meter
        trace.authenticated_monotonic_s = trace.admitted_monotonic_s = came_s
        trace.status, trace.usage, trace.outcome = 200, usage, Outcome.COMPLETED
        meter.route, meter.replica = "prefix", "r1"
        meter.sent_monotonic_s = meter.first_byte_monotonic_s = came_s
        log.finish(trace)
        if tracer is not None and number % _SPANS_A_POST == _SPANS_A_POST - 1:
            encode_spans({"service.name": "pandal-gateway"}, tracer.take_spans(_SPANS_A_POST))
    log.tell()


async def measure(folder: Path, loop: LoopbackLoop, options: argparse.Namespace) -> None:
    requests = [request_bytes(n, 900, is_stream=False) for n in range(NUM_CLIENTS)]
    async with AsyncExitStack() as stack:
        for number in range(len(SIGNALS)):
            (folder / str(number)).mkdir()
        loads = [
            await stack.enter_async_context(loaded(folder / str(number), loop, requests, changes))
            for number, changes in enumerate(SIGNALS.values())
        ]
        gc.collect()
        gc.freeze()
        found = await rounds_us(loads, options.rounds, options.requests)
    failures = sum(load.failures.total() for load in loads)
    print_table(found, await alone_us(), failures)


def print_table(
    found: Sequence[Sequence[float]], alone: Mapping[str, float], num_failures: int
) -> None:
    best = [min(times) for times in found]
    counters = alone["counters and histograms"]
    print("| signals | us a request, best (median) | all signals so far, us | by themselves |")
    print("|---|---|---|---|")
    for name, least, times in zip(SIGNALS, best, found, strict=True):
        told = f"{least:.1f} ({statistics.median(times):.1f})"
        so_far = f"{least - best[0] + counters:.1f}"
        by_themselves = f"{alone[name]:.1f}" if name in alone else ""
        print(f"| {name} | {told} | {so_far} | {by_themselves} |")
    print(f"failed: {num_failures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=500, help="of a round")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
    with tempfile.TemporaryDirectory() as name, peers.store(Path(name), "1"):
        loop = LoopbackLoop(0)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(measure(Path(name), loop, options))


if __name__ == "__main__":
    main()
