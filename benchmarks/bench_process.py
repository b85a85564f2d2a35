"""``pandal bench`` as a process of its own: the generator of every proof about load."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from benchmarks.local_fleet import MODEL, PANDAL
from pandal.bench.report import BenchReport


@contextmanager
def started(
    url: str, api_key: str, options: Sequence[str], model: str = MODEL
) -> "Iterator[subprocess.Popen[bytes]]":
    """A run that goes on beside what the caller does; ended with it."""
    command = [*PANDAL, "bench", "--url", url, "--model", model, "--json", *options]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PANDAL_BENCH_API_KEY": api_key},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def report_of(process: "subprocess.Popen[bytes]") -> BenchReport:
    """Blocks until the run has ended.  Raises RuntimeError for one that measured nothing."""
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"pandal bench ended with {process.returncode}")
    return msgspec.json.decode(output, type=BenchReport)


def bench(url: str, api_key: str, options: Sequence[str], model: str = MODEL) -> BenchReport:
    with started(url, api_key, options, model) as process:
        return report_of(process)
