"""What each step of a request costs the gateway, in CPU time, without the kernel's part.

    python -m benchmarks.gateway_steps [--requests 20000] [--prompt-bytes 900] [--chunks N]
                                       [--refused | --shed]

The gateway is composed in this process as ever, on an event loop whose replicas, and clients, are a
few lines of Python that answer at once.  Store and spool are real.  So what is counted is the code
of the gateway: the same on a busy machine as on an idle one, up to what its caches do.  Rounds are
timed by the thread's own CPU clock; then a profiler looks, every few milliseconds of CPU time,
which of our lines runs.  A call into C counts for the line that made it.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from benchmarks import gateway_peers as peers
from benchmarks import loopback
from benchmarks.loopback import LoopbackLoop, Wire
from contracts.admission import AdmissionPolicy
from gateway.app import create_app
from gateway.client_connection import ConnectionLimits
from gateway.line_writer import LineWriter
from gateway.server import GatewayServer, Listener
from gateway.settings import ReplicaAddress, Settings

ROOT = Path(__file__).parents[1]
OUTSIDE = (__file__, loopback.__file__)  # who calls the gateway, and is called by it
Result = TypeVar("Result")
NUM_ROUNDS = 40  # short ones: some meet a quiet moment, and the best is printed
NUM_WARM_UP = 2_000
STEPS = {  # by the longest beginning of the module's path
    "": "outside: event loop, this benchmark",
    "gateway/": "flow",
    "gateway/protocol": "HTTP of the client",
    "gateway/client_connection": "HTTP of the client",
    "gateway/request_head": "HTTP of the client",
    "gateway/exchange": "HTTP of the client",
    "gateway/auth": "authenticate",
    "gateway/policies": "authenticate",
    "gateway/api/": "parse, tokens, rewrite",
    "gateway/admission/estimate": "parse, tokens, rewrite",
    "gateway/admission/": "reserve and settle",
    "gateway/api/headers": "reserve and settle",
    "gateway/routing/": "route",
    "gateway/fleet": "route",
    "gateway/upstream/": "HTTP of the replica",
    "gateway/relay": "relay",
    "gateway/resilience/": "relay",
    "gateway/api/plain_events": "relay",
    "gateway/api/event_stream": "relay",
    "gateway/metering": "usage event",
    "gateway/settlement": "usage event",
    "gateway/event_encoder": "usage event",
    "gateway/experience": "learn",
    "gateway/outbox/": "usage event",
    "contracts/": "usage event",
    "gateway/access_log": "log, metrics",
    "gateway/request_kinds": "log, metrics",
    "gateway/request_lines": "log, metrics",
    "gateway/trace": "log, metrics",
    "gateway/telemetry/": "log, metrics",
    "gateway/line_writer": "log, metrics",
    "gateway/metrics": "log, metrics",
    "gateway/histogram": "log, metrics",
    "gateway/token_counts": "log, metrics",
}


class Load:
    """Clients that ask again as soon as they are answered, until enough are."""

    def __init__(self, loop: LoopbackLoop, requests: Sequence[bytes]) -> None:
        self.loop, self.requests = loop, requests
        self.failures: Counter[bytes] = Counter()  # by status line
        self._num_left = 0
        self._clients: list[ClientWire] = []
        self._all_answered = asyncio.Event()

    def connect(self, server: GatewayServer) -> None:
        config = server.config
        protocol_class: Any = config.http_protocol_class  # uvicorn types it as any protocol
        protocol = protocol_class(
            config=config, server_state=server.server_state, app_state={}, _loop=self.loop
        )
        request = self.requests[len(self._clients) % len(self.requests)]
        self._clients.append(ClientWire(self, protocol, request))

    async def run(self, num_requests: int) -> None:
        self._num_left = num_requests
        self._all_answered.clear()
        for client in self._clients:
            client.ask()
        await self._all_answered.wait()

    def answered(self, client: "ClientWire") -> None:
        self._num_left -= 1
        if self._num_left >= len(self._clients):
            self.loop.call_soon(client.ask)
        elif self._num_left == 0:
            self._all_answered.set()


class ClientWire(Wire):
    def __init__(self, load: Load, protocol: Any, request: bytes) -> None:
        super().__init__(load.loop.socket)
        self._load, self._protocol, self._request = load, protocol, request
        self._is_first = True
        protocol.connection_made(self)

    def ask(self) -> None:
        self._is_first = True
        self._protocol.data_received(self._request)

    def write(self, data: Any) -> None:
        if self._is_first:
            self._is_first = False
            if not data.startswith(b"HTTP/1.1 200"):
                self._load.failures[data.partition(b"\r\n")[0]] += 1
        if not self._load.loop.num_chunks or data.endswith(b"0\r\n\r\n"):
            self._load.answered(self)


class Profiler:
    """Which step runs, at every tick of the process's CPU clock."""

    def __init__(self) -> None:
        self.by_step: Counter[str] = Counter()
        self.by_line: Counter[str] = Counter()
        self._step_of: dict[str, str] = {}

    def __enter__(self) -> "Profiler":
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        """For the innermost frame of ours: what it calls, it calls for its own step."""
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith((f"{ROOT}/gateway/", f"{ROOT}/contracts/")):
                self.by_step[self._step(path)] += 1
                self.by_line[f"{path[len(str(ROOT)) + 1 :]}:{frame.f_lineno}"] += 1
                return
            if path in OUTSIDE:
                break
            frame = frame.f_back
        self.by_step[STEPS[""]] += 1

    def _step(self, path: str) -> str:
        if path not in self._step_of:
            relative = path[len(str(ROOT)) + 1 :]
            self._step_of[path] = STEPS[max((s for s in STEPS if relative.startswith(s)), key=len)]
        return self._step_of[path]


def requests_of(options: argparse.Namespace) -> list[bytes]:
    """Of as many conversations as there are connections."""
    is_stream = options.chunks > 0
    numbers = range(options.connections)
    return [request_bytes(n, options.prompt_bytes, is_stream=is_stream) for n in numbers]


def request_bytes(number: int, prompt_bytes: int, *, is_stream: bool) -> bytes:
    content = f"{number}. " + "The second node's disk filled up at noon. " * (prompt_bytes // 41)
    messages = [{"role": "user", "content": content}]
    members = {"model": "mock", "messages": messages, "max_tokens": 64, "stream": is_stream}
    body = json.dumps(members).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {peers.KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def settings_for(folder: Path, options: argparse.Namespace | None = None) -> Settings:
    policy_file = folder / "policy.json"
    if options is not None and options.refused:
        peers.write_policy(policy_file, requests_per_minute=1)
    elif options is not None and options.shed:
        peers.write_policy(policy_file, admission=AdmissionPolicy(ttft_target_ms=1))
    else:
        peers.write_policy(policy_file)
    return Settings(
        replicas=tuple(
            ReplicaAddress(name=f"r{n}", url=f"http://127.0.0.1:{20_000 + n}")
            for n in range(peers.NUM_UPSTREAMS)
        ),
        policy_file=policy_file,
        key_pepper=peers.PEPPER,
        quota_url=f"unix://{folder}/quota.sock",
        spool_dir=folder / "spool",
        quota_call_deadline_s=10.0,  # other work on the machine is no outage
        durability="relaxed",
    )


async def measure(folder: Path, load: Load, options: argparse.Namespace) -> None:
    log = LineWriter(os.open(os.devnull, os.O_WRONLY))
    async with create_app(settings_for(folder, options), log.write) as gateway:
        listener = Listener("127.0.0.1", 0, 75, 20.0, 0.0)
        server = GatewayServer(gateway, listener, ConnectionLimits(8 << 20, 60.0, 60.0, 60.0))
        server.config.load()
        while gateway.readiness.reasons_not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(options.connections):
            load.connect(server)
        await load.run(NUM_WARM_UP)
        gc.collect()
        gc.freeze()  # as the gateway's own main does
        gc.set_threshold(20_000, 20, 20)
        per_request = options.requests // NUM_ROUNDS * max(1, options.chunks)
        loop_us, all_us = [], []
        for _ in range(NUM_ROUNDS):
            thread_s, process_s = time.thread_time(), time.process_time()
            await load.run(options.requests // NUM_ROUNDS)
            loop_us.append((time.thread_time() - thread_s) * 1e6 / per_request)
            all_us.append((time.process_time() - process_s) * 1e6 / per_request)
        with Profiler() as profiler:
            await load.run(options.requests)
        print_table(profiler, min(loop_us), statistics.median(loop_us), min(all_us), options)
        print(f"failed: {dict(load.failures)}")


def print_table(
    profiler: Profiler, best_us: float, median_us: float, all_us: float, options: argparse.Namespace
) -> None:
    total = profiler.by_step.total()
    unit = "chunk" if options.chunks else "request"
    outside = profiler.by_step[STEPS[""]] / total
    print(f"| step | us per {unit} | share |\n|---|---|---|")
    for step, count in profiler.by_step.most_common():
        print(f"| {step} | {count / total * best_us:.1f} | {count / total:.0%} |")
    print(f"| event loop's thread | {best_us:.1f} (median {median_us:.1f}) | |")
    print(f"| of which the gateway | {best_us * (1 - outside):.1f} | |")
    print(f"| with the threads of log and spool | {all_us:.1f} | |")
    for line, count in profiler.by_line.most_common(options.lines):
        print(f"{count / total * best_us:6.2f} us  {line}")


def parser_of(title: str, num_requests: int) -> argparse.ArgumentParser:
    """What a measurement in one process is told."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--requests", type=int, default=num_requests)
    parser.add_argument("--prompt-bytes", type=int, default=900)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=0, help="of a stream; 0: a whole answer")
    refusal = parser.add_mutually_exclusive_group()
    refusal.add_argument("--refused", action="store_true", help="all are too many for the quota")
    refusal.add_argument("--shed", action="store_true", help="nearly all, for the replicas")
    return parser


def run(
    measured: Callable[[Path, Load, argparse.Namespace], Coroutine[Any, Any, Result]],
    options: argparse.Namespace,
) -> Result:
    """On a loop without sockets, before a quota store."""
    logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
    with tempfile.TemporaryDirectory() as name, peers.store(Path(name), "1"):
        requests = requests_of(options)
        loop = LoopbackLoop(options.chunks, is_shedding=options.shed)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(measured(Path(name), Load(loop, requests), options))


def main() -> None:
    parser = parser_of(__doc__.partition("\n")[0], 20_000)
    parser.add_argument("--lines", type=int, default=0, help="the costliest lines to list")
    run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
