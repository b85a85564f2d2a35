"""Replicas of one machine that come and go with the load, while a long stream lives through it.

    python -m benchmarks.local_scaling [--most 3] [--per-second 3] [--seconds 60]

``pandal up --replicas 1 --autoscale``: real replicas, ``pandal bench`` as the load.  Exit status 1
when a request failed, the long stream broke, or the fleet did not grow and shrink again.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench_process import report_of, started
from benchmarks.local_fleet import MODEL
from benchmarks.sse_client import Timed, stream_completion
from benchmarks.ttft_prediction import FORECASTING, fleet, tenant_key
from pandal.bench.report import BenchReport
from pandal.datadir import DataDir
from pandal.fleet_record import read_fleet_state
from pandal.processes import is_alive

LOOK_S = 1.0
PATIENCE_S = 300.0  # the load, a minute's window, then one replica every ten seconds
LONG_STREAM_TOKENS = 1_000


class Counts:
    """How many replicas ran, from look to look."""

    def __init__(self, folder: Path) -> None:
        self._data_dir = DataDir(folder)
        self._begun_s = time.monotonic()
        self.seen: list[int] = []

    def look(self) -> int:
        state = read_fleet_state(self._data_dir)
        assert state is not None, "the fleet has ended"
        replicas = [p for name, p in state.children.items() if name.startswith("replica-")]
        num = sum(map(is_alive, replicas))
        if not self.seen or self.seen[-1] != num:
            self.seen.append(num)
            print(f"  {time.monotonic() - self._begun_s:6.0f} s: {num} replicas", flush=True)
        return num


async def watch(counts: Counts, load: "subprocess.Popen[bytes]") -> None:
    """Until the load has ended and the fleet is as small as it began."""
    while True:
        num_replicas, has_ended = counts.look(), load.poll() is not None
        if has_ended and num_replicas == 1:
            return
        await asyncio.sleep(LOOK_S)


async def scale(url: str, key: str, folder: Path, options: list[str]) -> tuple[Timed, BenchReport]:
    """The long stream, which begins with the load, and what the load met."""
    prompt = "A long story about a harbour:"
    counts = Counts(folder)
    with started(url, key, options) as load:
        long_stream = asyncio.create_task(
            stream_completion(url, key, MODEL, prompt, LONG_STREAM_TOKENS)
        )
        async with asyncio.timeout(PATIENCE_S):
            await watch(counts, load)
        report = report_of(load)
        assert max(counts.seen) > 1, "the fleet did not grow"
        return await long_stream, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--per-second", type=float, default=3.0)
    parser.add_argument("--port", type=int, default=18_210)
    given = parser.parse_args()
    what = "--workload lognormal --prompt-tokens 60 --output-tokens 40 --exact-lengths"
    when = f"--rate {given.per_second} --duration-s {given.seconds} --seed 1"
    scaling = ("--replicas", "1", "--autoscale", str(given.most))
    with tempfile.TemporaryDirectory() as name, fleet(Path(name), given.port, scaling) as url:
        key = tenant_key(Path(name), "bench", FORECASTING)
        options = [*what.split(), *when.split()]
        stream, report = asyncio.run(scale(url, key, Path(name), options))
    total = report.total
    num_failed = total.num_requests - total.outcomes.get("completed", 0)
    print(f"  {total.num_requests} requests, {num_failed} failed; the long stream:", end=" ")
    print(f"{stream.completion_tokens} tokens in {stream.total_s:.0f} s")
    sys.exit(1 if num_failed or stream.completion_tokens != LONG_STREAM_TOKENS else 0)


if __name__ == "__main__":
    main()
