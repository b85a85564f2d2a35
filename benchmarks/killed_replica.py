"""What clients see of a replica that is killed under load, beside an undisturbed run.

    python -m benchmarks.killed_replica [--per-second 1.0] [--seconds 40]

A local fleet of two real replicas, driven by ``pandal bench``: first undisturbed, then with a
SIGKILL to one of the replicas half-way; it is started again and rejoins while the load goes on.
Exit status 1 when a request failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench_process import bench, report_of, started
from benchmarks.ttft_prediction import FORECASTING, fleet, tenant_key
from pandal.bench.report import Section


def options(given: argparse.Namespace, seed: int) -> list[str]:
    """Short questions and longer answers, so that most of a request's life is its stream."""
    what = "--workload lognormal --prompt-tokens 40 --output-tokens 40 --exact-lengths"
    when = f"--rate {given.per_second} --duration-s {given.seconds} --seed {seed}"
    return [*what.split(), *when.split()]


def kill(process: "subprocess.Popen[bytes]", folder: Path, after_s: float) -> None:
    """The second replica of the fleet, while ``process`` offers its load."""
    time.sleep(after_s)  # the moment of the fault is what the run is about
    assert process.poll() is None, "the load ended before the fault"
    children = json.loads((folder / "fleet.json").read_bytes())["children"]
    os.kill(int(children["replica-1"]["pid"]), signal.SIGKILL)


def row(name: str, seen: Section) -> int:
    """Prints it; returns how many requests did not complete."""
    ttft_s, itl_s = seen.latency.ttft_s, seen.latency.itl_s
    assert ttft_s is not None, "nothing was served"
    assert itl_s is not None, "nothing was streamed"
    num_failed = seen.num_requests - seen.outcomes.get("completed", 0)
    figures = f"{ttft_s.p50:>9.2f}{ttft_s.p95:>9.2f}{itl_s.p99:>9.2f}{itl_s.max:>9.2f}"
    print(f"  {name:<12}{seen.num_requests:>9}{num_failed:>8}{figures}")
    return num_failed


def measure(url: str, key: str, folder: Path, given: argparse.Namespace) -> int:
    """Requests that failed when a replica was killed."""
    bench(url, key, options(given, seed=1))  # what the gateway predicts by is learnt here
    calm = bench(url, key, options(given, seed=2))
    with started(url, key, options(given, seed=3)) as process:
        kill(process, folder, given.seconds / 2)
        killed = report_of(process)
    print("               requests  failed  TTFT p50      p95  gap p99      max  (s)")
    row("undisturbed", calm.total)
    return row("one killed", killed.total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--per-second", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=18_200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fleet(Path(name), given.port) as url:
        folder = Path(name)
        num_failed = measure(url, tenant_key(folder, "bench", FORECASTING), folder, given)
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
