"""``pandal up`` beside ``transformers`` ``generate``: same weights, same prompts, in one run.

Three ways to one model, in turn, several rounds: the replica directly; through the gateway
(authentication, quota, routing, relay, a synced usage event); and the peer.  Quote medians and
ratios: machines drift.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sse_client import Timed, stream_completion
from benchmarks.waiting import wait_until
from replica.model.store import resolve
from replica.settings import default_cache_dir

PANDAL = (sys.executable, "-m", "pandal")
MODEL = "SmolLM2-135M-Instruct"
START_PATIENCE_S = 180.0
TOPICS = ("harbours", "bread", "glaciers", "trains", "violins", "bees", "maps", "tides")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to the model in one round."""

    ttft_ms: float | None  # None: the peer does not stream
    single_tokens_per_s: float
    batch_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    num_concurrent: int
    max_tokens: int

    def prompts(self, round_: int, way: str) -> list[str]:
        """Different in every round and way: no prefix cache may help one of them."""
        return [
            f"{way} {round_} {i}: a short essay about {TOPICS[i % len(TOPICS)]} begins as follows."
            for i in range(self.num_concurrent)
        ]


def _serves(process: "subprocess.Popen[bytes]", data_dir: Path) -> bool:
    screen = (data_dir / "screen.log").read_text()
    if process.poll() is not None:
        raise RuntimeError(screen)
    return "serving on" in screen


@contextmanager
def fleet(data_dir: Path, port: int) -> Iterator[tuple[str, str, str]]:
    """(replica URL, gateway URL, key) of a running ``pandal up``."""
    log = (data_dir / "screen.log").open("wb")
    process = subprocess.Popen(
        [*PANDAL, "up", "--port", str(port), "--data-dir", str(data_dir)], stdout=log, stderr=log
    )
    try:
        wait_until(lambda: _serves(process, data_dir), "the fleet to serve", START_PATIENCE_S)
        state = json.loads((data_dir / "fleet.json").read_bytes())
        key = create_key(data_dir)
        replica_url = next(iter(state["replica_urls"].values()))
        yield replica_url, state["gateway_url"], key
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


def create_key(data_dir: Path) -> str:
    """Of a tenant whose quota never gets in the way."""
    options = f"--tenant bench --tier gold --tpm 100000000 --rpm 1000000 --data-dir {data_dir}"
    command = [*PANDAL, "keys", "create", "--json", *options.split()]
    created = subprocess.run(command, check=True, capture_output=True)
    return str(json.loads(created.stdout)["api_key"])


@contextmanager
def peer(num_threads: int) -> Iterator["subprocess.Popen[str]"]:
    path = resolve(MODEL, default_cache_dir(), lambda _: None)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transformers_peer", str(path), str(num_threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        ask_peer(process, None)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def ask_peer(process: "subprocess.Popen[str]", request: dict[str, object] | None) -> float:
    """Seconds.  ``None`` only waits until the model is loaded."""
    assert process.stdin is not None
    assert process.stdout is not None
    if request is not None:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    return float(json.loads(process.stdout.readline()).get("seconds", 0))


def measure_peer(process: "subprocess.Popen[str]", prompts: Sequence[str], load: Workload) -> Row:
    single_s = ask_peer(process, {"prompts": prompts[:1], "max_tokens": load.max_tokens})
    batch_s = ask_peer(process, {"prompts": prompts, "max_tokens": load.max_tokens})
    return Row(None, load.max_tokens / single_s, load.max_tokens * len(prompts) / batch_s)


async def measure_server(url: str, key: str, prompts: Sequence[str], load: Workload) -> Row:
    async def ask(prompt: str) -> Timed:
        return await stream_completion(url, key, MODEL, prompt, load.max_tokens)

    single = await ask("alone " + prompts[0])
    started_s = time.perf_counter()
    batch = await asyncio.gather(*map(ask, prompts))
    batch_s = time.perf_counter() - started_s
    num_tokens = sum(timed.completion_tokens for timed in batch)
    return Row(single.ttft_s * 1e3, single.completion_tokens / single.total_s, num_tokens / batch_s)


def run(num_rounds: int, load: Workload, port: int) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {"replica": [], "gateway": [], "transformers": []}
    num_threads = os.cpu_count() or 1
    with (
        tempfile.TemporaryDirectory() as folder,
        peer(num_threads) as generate,
        fleet(Path(folder), port) as (replica_url, gateway_url, key),
    ):
        for round_ in range(num_rounds):
            for way, url in (("replica", replica_url), ("gateway", gateway_url)):
                prompts = load.prompts(round_, way)
                rows[way].append(asyncio.run(measure_server(url, key, prompts, load)))
            prompts = load.prompts(round_, "transformers")
            rows["transformers"].append(measure_peer(generate, prompts, load))
    return rows


def medians(rows: Sequence[Row]) -> Row:
    ttfts = [row.ttft_ms for row in rows if row.ttft_ms is not None]
    return Row(
        statistics.median(ttfts) if ttfts else None,
        statistics.median(row.single_tokens_per_s for row in rows),
        statistics.median(row.batch_tokens_per_s for row in rows),
    )


def print_table(rows: dict[str, list[Row]], load: Workload) -> None:
    base = medians(rows["transformers"])
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"Python {platform.python_version()}, {load.max_tokens} tokens an answer, medians")
    print(
        f"| way | TTFT ms | 1 stream tok/s | {load.num_concurrent} at once tok/s | ratio 1 |",
        end="",
    )
    print(f" ratio {load.num_concurrent} |\n|---|---|---|---|---|---|")
    for way, measured in rows.items():
        row = medians(measured)
        ttft = "-" if row.ttft_ms is None else f"{row.ttft_ms:.0f}"
        single, batch = row.single_tokens_per_s, row.batch_tokens_per_s
        print(
            f"| {way} | {ttft} | {single:.1f} | {batch:.1f} | "
            f"{single / base.single_tokens_per_s:.2f} | {batch / base.batch_tokens_per_s:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrent", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--port", type=int, default=18080)
    arguments = parser.parse_args()
    load = Workload(arguments.concurrent, arguments.max_tokens)
    print_table(run(arguments.rounds, load, arguments.port), load)


if __name__ == "__main__":
    main()
