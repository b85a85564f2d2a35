"""Our engine beside others on the shared workload, through HTTP, interleaved.

    python -m benchmarks.engine_cpu MODEL.gguf [--ours exact/float32 fast/bfloat16] [--rounds 3] \
        [--peer "llama.cpp=llama-server -m MODEL.gguf --port {port} -c 16384 -np 32"] \
        [--peer "OpenVINO f32=PYTHON -m benchmarks.peers.openvino_genai MODEL.gguf {port} --exact"]

The workload: single prompts of 32 tokens (128 out), 512 and 2000 (1 out), then 16 and 32 requests
at once, of 32 to 256 tokens in and 32 to 128 out; greedy, no end of text, each round with another
first token, so that no prefix cache helps.  A peer is the command of any server that speaks
OpenAI's completions with token ids and streams usage; ``benchmarks/peers`` puts such a server
around engines that have none, to be run by the Python that has the engine.  All servers stay up,
one works at a time, and every round visits all of them.  Medians of rounds; memory is the peak of
all of a server's processes.  Read ratios, not figures: the speed of a shared machine drifts within
minutes.
"""

import argparse
import asyncio
import functools
import json
import random
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.replica_process import REPLICA, Server, family, started
from benchmarks.sse_client import Timed, stream_completion
from replica.model.tokenizer_loader import load_tokenizer

SEED: Final = 20260601
START_TIMEOUT_S: Final = 300.0
TEXT: Final = Path(__file__).with_name("quality_text.txt")
SINGLE_OUT_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Request:
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    singles: dict[int, list[int]]  # prompts by their length
    requests: list[Request]


@dataclass(slots=True)
class Contestant:
    name: str
    server: Server
    startup_s: float

    def peak_bytes(self) -> int:
        """Of all its processes; pages they share count in each."""
        return sum(_peak_bytes(pid) for pid in family(self.server.process.pid))


def make_workload(model: Path) -> Workload:
    tokenizer = load_tokenizer(model, lambda: datetime.now(UTC))
    ids = tokenizer.encode(TEXT.read_text())
    generator = random.Random(SEED)

    def cut(length: int) -> list[int]:
        start = generator.randrange(len(ids) - length)
        return ids[start : start + length]

    return Workload(
        singles={length: cut(length) for length in (32, 512, 2000)},
        requests=[
            Request(cut(generator.randint(32, 256)), generator.randint(32, 128)) for _ in range(32)
        ],
    )


@contextmanager
def running(name: str, command: Sequence[str], environment: dict[str, str]) -> Iterator[Contestant]:
    """command: with {port} where the server's port belongs."""
    started_s = time.perf_counter()
    with started(command, environment, subprocess.DEVNULL) as server:
        asyncio.run(_first_answer(server.url, server.process, started_s))
        yield Contestant(name, server, time.perf_counter() - started_s)


async def _first_answer(url: str, process: "subprocess.Popen[bytes]", started_s: float) -> None:
    """A completion, not a health check: servers differ in what they call ready."""
    while True:
        try:
            await send(url, Request([1, 2, 3], 2))
        except (OSError, RuntimeError):
            if process.poll() is not None or time.perf_counter() - started_s > START_TIMEOUT_S:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def send(url: str, request: Request) -> Timed:
    model = _served_model(url)
    return await stream_completion(url, "none", model, request.prompt, request.max_tokens)


@functools.cache
def _served_model(url: str) -> str:
    """The first the server names."""
    try:
        with urlopen(f"{url}/v1/models", timeout=5) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (URLError, KeyError, IndexError) as exc:
        raise RuntimeError("no model is served yet") from exc


async def one_round(url: str, workload: Workload, salt: int) -> dict[str, float]:
    def salted(prompt: Sequence[int]) -> list[int]:
        return [salt, *prompt[1:]]

    single = await send(url, Request(salted(workload.singles[32]), SINGLE_OUT_TOKENS))
    results = {"1x tok/s": single.decode_tokens_per_s}
    for length in (512, 2000):
        timed = await send(url, Request(salted(workload.singles[length]), 1))
        results[f"prefill {length} tok/s"] = length / timed.ttft_s
    for count in (16, 32):
        requests = [Request(salted(r.prompt), r.max_tokens) for r in workload.requests[:count]]
        started_s = time.perf_counter()
        timings = await asyncio.gather(*(send(url, request) for request in requests))
        wall_s = time.perf_counter() - started_s
        results[f"{count}x tok/s"] = sum(t.completion_tokens for t in timings) / wall_s
        results[f"{count}x TTFT p50 s"] = statistics.median(t.ttft_s for t in timings)
    return results


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def our_server(
    pair: str, model: Path, kv_cache_bytes: int
) -> tuple[str, list[str], dict[str, str]]:
    precision, kv_dtype = pair.split("/")
    environment = {
        "REPLICA_PORT": "{port}",
        "REPLICA_MODEL": str(model),
        "REPLICA_PRECISION": precision,
        "REPLICA_KV_CACHE_DTYPE": kv_dtype,
        "REPLICA_KV_CACHE_BYTES": str(kv_cache_bytes),
        "REPLICA_LOG_LEVEL": "error",
    }
    return f"ours {pair}", list(REPLICA), environment


Medians = dict[str, dict[str, float]]  # by server, by column


def medians_of(rounds: dict[str, list[dict[str, float]]]) -> Medians:
    return {
        name: {column: statistics.median(r[column] for r in results) for column in results[0]}
        for name, results in rounds.items()
    }


def print_table(servers: Sequence[Contestant], medians: Medians) -> None:
    columns = list(medians[servers[0].name])
    print("| server | start s | peak MiB | " + " | ".join(columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    for one in servers:
        cells = " | ".join(f"{medians[one.name][c]:.4g}" for c in columns)
        print(f"| {one.name} | {one.startup_s:.1f} | {one.peak_bytes() >> 20} | {cells} |")


def print_ratios(ours: Sequence[str], peers: Sequence[str], medians: Medians) -> None:
    """To the best peer of each column; more is better, times too."""
    columns = list(medians[ours[0]])
    print("\n| ours / best peer | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for name in ours:
        cells = [_ratio(column, medians[name], [medians[p] for p in peers]) for column in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")


def _ratio(column: str, ours: dict[str, float], peers: Sequence[dict[str, float]]) -> str:
    if column.endswith(" s"):
        return f"{min(p[column] for p in peers) / ours[column]:.2f}"
    return f"{ours[column] / max(p[column] for p in peers):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--ours", nargs="*", default=["exact/float32", "fast/bfloat16"])
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND with {port}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-cache-bytes", type=int, default=1 << 30)
    arguments = parser.parse_args()
    workload = make_workload(arguments.model)
    commands = [
        our_server(p, arguments.model.resolve(), arguments.kv_cache_bytes) for p in arguments.ours
    ]
    ours = [name for name, _, _ in commands]
    for peer in arguments.peer:
        name, _, command = peer.partition("=")
        commands.append((name, shlex.split(command), {}))
    peers = [name for name, _, _ in commands[len(ours) :]]
    with ExitStack() as stack:
        servers = [stack.enter_context(running(*command)) for command in commands]
        rounds: dict[str, list[dict[str, float]]] = {one.name: [] for one in servers}
        for number in range(arguments.rounds):
            for one in servers:
                rounds[one.name].append(
                    asyncio.run(one_round(one.server.url, workload, 1000 + number))
                )
        medians = medians_of(rounds)
        print_table(servers, medians)
        if ours and peers:
            print_ratios(ours, peers, medians)


if __name__ == "__main__":
    main()
