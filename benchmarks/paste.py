"""What a long prompt does to running streams, and how long a step may be.

For each budget of tokens per step: a replica, streams that run, and one prompt pasted among them.
Time per output token (TPOT) is the time between two events of a stream.  A step computes as much
of the prompt as its budget has room for, so the streams' TPOT meanwhile is the time of such a step;
a line through these times says which budget holds a target.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.replica_process import replica
from tests.replica.tiny_hf import save_tiny_model

STEP_PATIENCE_S = 120.0
LONG_CONTEXT = 32_768


@dataclass(frozen=True, slots=True)
class Load:
    num_streams: int
    num_pasted_tokens: int
    max_tokens: int  # of a stream: more than it gets, since one that has ended tells nothing
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Row:
    budget_tokens: int
    quiet_ms: Sequence[float]  # TPOT of the streams before the paste
    paste_ms: Sequence[float]  # and during it
    paste_s: float

    @property
    def p99_ms(self) -> float:
        return percentile(self.paste_ms, 0.99)


def percentile(values: Sequence[float], ratio: float) -> float:
    return sorted(values)[min(len(values) - 1, int(ratio * len(values)))]


@asynccontextmanager
async def asked(
    port: int, method: str, path: str, body: bytes = b""
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield reader
    finally:
        writer.close()


async def run_stream(
    port: int, index: int, max_tokens: int, arrivals_s: list[float], begun: asyncio.Event
) -> None:
    """Until it is cancelled."""
    body = {"prompt": [40 + index, 7, 9], "max_tokens": max_tokens, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}  # so that every token is an event
    async with asked(port, "POST", "/v1/completions", json.dumps(body).encode()) as reader:
        async for line in reader:
            if line.startswith(b"data: {"):
                arrivals_s.append(time.perf_counter())
                begun.set()


async def paste(port: int, num_tokens: int) -> tuple[float, float]:
    """When it was sent, and when it was answered."""
    rng = random.Random(num_tokens)
    body = {"prompt": [rng.randrange(1, 250) for _ in range(num_tokens)], "max_tokens": 1}
    sent_s = time.perf_counter()
    async with asked(port, "POST", "/v1/completions", json.dumps(body).encode()) as reader:
        async with asyncio.timeout(STEP_PATIENCE_S):
            status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"the paste was answered {status!r}")
    return sent_s, time.perf_counter()


async def measure(port: int, budget_tokens: int, load: Load) -> Row:
    arrivals_s: list[list[float]] = [[] for _ in range(load.num_streams)]
    begun = [asyncio.Event() for _ in arrivals_s]
    streams = [
        asyncio.create_task(run_stream(port, i, load.max_tokens, arrivals_s[i], begun[i]))
        for i in range(load.num_streams)
    ]
    try:
        async with asyncio.timeout(STEP_PATIENCE_S):
            for event in begun:
                await event.wait()
        began_s = time.perf_counter()
        await asyncio.sleep(load.quiet_s)
        sent_s, answered_s = await paste(port, load.num_pasted_tokens)
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return Row(
        budget_tokens,
        quiet_ms=gaps_ms(arrivals_s, began_s, sent_s),
        paste_ms=gaps_ms(arrivals_s, sent_s, answered_s),
        paste_s=answered_s - sent_s,
    )


def gaps_ms(arrivals_s: Sequence[Sequence[float]], start_s: float, end_s: float) -> list[float]:
    return [
        (later - earlier) * 1000
        for stream in arrivals_s
        for earlier, later in pairwise(stream)
        if start_s <= earlier and later <= end_s
    ]


def budget_for(target_ms: float, rows: Sequence[Row]) -> int | None:
    """The largest multiple of 16 whose 99th percentile is on the line below the target."""
    sizes, times_ms = [r.budget_tokens for r in rows], [r.p99_ms for r in rows]
    slope, intercept = statistics.linear_regression(sizes, times_ms)
    budget = int((target_ms - intercept) / slope) // 16 * 16
    return budget if budget > 0 else None


def print_row(row: Row, load: Load) -> None:
    quiet = f"{statistics.median(row.quiet_ms):.0f}, {percentile(row.quiet_ms, 0.99):.0f}"
    during = f"{statistics.median(row.paste_ms):.0f}, {row.p99_ms:.0f}"
    rate = load.num_pasted_tokens / row.paste_s
    print(
        f"| {row.budget_tokens} | {quiet} | {during} | {row.paste_s:.1f} | {rate:.0f} |", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--long-context", action="store_true", help="random weights, 30,000 tokens")
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--paste", type=int, default=3_000)
    parser.add_argument("--targets-ms", type=float, nargs="+", default=[100, 250, 500, 1000])
    options = parser.parse_args()
    num_pasted = 30_000 if options.long_context else options.paste
    max_tokens = 30_000 if options.long_context else 4_000
    load = Load(options.streams, num_pasted, max_tokens, quiet_s=3.0)
    with tempfile.TemporaryDirectory() as name:
        model = options.model
        if options.long_context:
            model = f"{name}/long-context"
            save_tiny_model(Path(model), context_length=LONG_CONTEXT)
        print(f"{platform.machine()}, {os.cpu_count()} CPUs, {load}")
        print("| tokens a step | TPOT ms p50, p99 without | with the paste | paste s | tokens/s |")
        print("|---|---|---|---|---|", flush=True)
        rows = []
        for budget_tokens in options.budgets:
            with replica(model=model, max_num_batched_tokens=budget_tokens) as server:
                rows.append(asyncio.run(measure(server.port, budget_tokens, load)))
            print_row(rows[-1], load)
    for target_ms in options.targets_ms if len(rows) > 1 else ():
        budget = budget_for(target_ms, rows)
        print(f"TPOT p99 of {target_ms:.0f} ms during a paste: {budget or 'no'} tokens a step")


if __name__ == "__main__":
    main()
