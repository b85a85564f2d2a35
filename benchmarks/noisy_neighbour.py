"""A quiet tenant's time to first token, alone and beside one with a hundred times its traffic.

    python -m benchmarks.noisy_neighbour [--seconds 30] [--per-second 0.5] [--factor 100]

A local fleet of two real replicas.  Both tenants have a target and may wait for their turn; the
noisy one sends again at once, whatever it is told.  All of it runs on this machine, so the quiet
tenant also pays for the processor time that the noise takes: the last column shows how much of the
noise got through.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.local_fleet import MODEL
from benchmarks.sse_client import stream_completion
from benchmarks.ttft_prediction import fleet, tenant_key
from contracts.admission import AdmissionPolicy

ANSWER_TOKENS = 8
FAIR = AdmissionPolicy(ttft_target_ms=1_500, max_queue_ms=10_000)


async def traffic(
    url: str, key: str, *, seconds: float, per_second: float, seed: int
) -> list[float]:
    """TTFTs of those that were served."""
    source, served = random.Random(seed), []

    async def ask(text: str) -> None:
        try:
            timed = await stream_completion(url, key, MODEL, text, ANSWER_TOKENS)
        except RuntimeError:
            return  # refused
        served.append(timed.ttft_s)

    async with asyncio.TaskGroup() as group:
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            words = [str(source.randrange(10**6)) for _ in range(source.randrange(5, 30))]
            group.create_task(ask(" ".join(words)))
            await asyncio.sleep(source.expovariate(per_second))
    return served


def percentile(values: Sequence[float], ratio: float) -> float:
    return sorted(values)[int(ratio * (len(values) - 1) + 0.5)]


def row(name: str, ttfts: Sequence[float], others: int) -> float:
    p50_s, p95_s = percentile(ttfts, 0.5), percentile(ttfts, 0.95)
    print(f"  {name:<10}{len(ttfts):>8}{p50_s:>10.3f}{p95_s:>10.3f}{others:>14}")
    return p95_s


async def measure(url: str, quiet: str, noisy: str, given: argparse.Namespace) -> None:
    seconds, rate = given.seconds, given.per_second
    await traffic(url, quiet, seconds=given.warm_up, per_second=rate, seed=1)
    print("  quiet      served   p50 s     p95 s  noise served")
    alone = await traffic(url, quiet, seconds=seconds, per_second=rate, seed=2)
    alone_s = row("alone", alone, 0)
    beside, noise = await asyncio.gather(
        traffic(url, quiet, seconds=seconds, per_second=rate, seed=2),
        traffic(url, noisy, seconds=seconds, per_second=rate * given.factor, seed=3),
    )
    print(f"  p95 moved by {100 * (row('beside', beside, len(noise)) / alone_s - 1):+.0f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--per-second", type=float, default=0.5)
    parser.add_argument("--factor", type=float, default=100.0)
    parser.add_argument("--port", type=int, default=18_190)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), given.port) as url:
        quiet, noisy = (tenant_key(Path(folder), name, FAIR) for name in ("quiet", "noisy"))
        asyncio.run(measure(url, quiet, noisy, given))


if __name__ == "__main__":
    main()
