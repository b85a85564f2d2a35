"""A quiet tenant's time to first token: alone, beside one like it, and beside a hundredfold one.

    python -m benchmarks.noisy_neighbour [--seconds 30] [--per-second 0.5] [--factor 100]

A local fleet of two real replicas.  Both tenants have a target and may wait for their turn; the
noisy one does not heed what it is told.  All of it runs on this machine, so the quiet tenant also
pays for the processor time that the noise takes: the last column shows how much of the noise got
through.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.bench_process import bench, report_of, started
from benchmarks.ttft_prediction import fleet, tenant_key
from contracts.admission import AdmissionPolicy
from pandal.bench.report import Section

FAIR = AdmissionPolicy(ttft_target_ms=1_500, max_queue_ms=10_000)


def options(given: argparse.Namespace, *, factor: float, seed: int) -> list[str]:
    """Short questions and answers, no two alike; refusals are not followed."""
    what = "--workload lognormal --prompt-tokens 40 --output-tokens 8 --exact-lengths"
    when = f"--rate {given.per_second * factor} --duration-s {given.seconds} --retry-after-s 0"
    return [*what.split(), *when.split(), "--warmup-s", str(given.warm_up), "--seed", str(seed)]


def row(name: str, quiet: Section, num_others: int) -> float:
    ttft_s = quiet.latency.ttft_s
    assert ttft_s is not None, "nothing of the quiet tenant's was served"
    print(f"  {name:<10}{ttft_s.num:>8}{ttft_s.p50:>10.3f}{ttft_s.p95:>10.3f}{num_others:>14}")
    return ttft_s.p95


def measure(url: str, quiet: str, noisy: str, given: argparse.Namespace) -> None:
    print("  quiet      served   p50 s     p95 s  noise served")
    alone_s = row("alone", bench(url, quiet, options(given, factor=1.0, seed=1)).total, 0)
    usual_s, crowded_s = (
        beside(url, quiet, noisy, given, factor) for factor in (1.0, given.factor)
    )
    moved = f"{100 * (crowded_s / usual_s - 1):+.0f} %, {100 * (crowded_s / alone_s - 1):+.0f} %"
    print(f"  p95 moved, from beside one like it and from alone: {moved}")


def beside(url: str, quiet: str, noisy: str, given: argparse.Namespace, factor: float) -> float:
    """The quiet tenant's p95."""
    with started(url, noisy, options(given, factor=factor, seed=3)) as noise:
        quiets = bench(url, quiet, options(given, factor=1.0, seed=2)).total
        served = report_of(noise).total.outcomes.get("completed", 0)
    return row(f"{factor:g} times", quiets, served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="with the warm-up")
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--per-second", type=float, default=0.5)
    parser.add_argument("--factor", type=float, default=100.0)
    parser.add_argument("--port", type=int, default=18_190)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), given.port) as url:
        quiet, noisy = (tenant_key(Path(folder), name, FAIR) for name in ("quiet", "noisy"))
        measure(url, quiet, noisy, given)


if __name__ == "__main__":
    main()
