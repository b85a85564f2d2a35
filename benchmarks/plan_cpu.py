"""``pandal plan`` beside a real run: SmolLM2 on this machine's cores, predicted and measured.

First by the data sheet alone: bandwidth and FLOP/s measured with numpy and torch, the planner's
default efficiencies.  Then with both efficiencies fitted to one stream, which is what an operator
who has measured once knows: what is left is the planner's error about batches it has not seen.
Last the simulated engine of ``pandal simulate``, with a step that is a line through the shortest
and the longest row measured: its error about the rows between.

    python -m benchmarks.plan_cpu [--sequences 1 4 16]
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.replica_process import replica
from pandal.planner.accelerator import Accelerator
from pandal.planner.bench_point import read_point
from pandal.planner.model_shape import find_model
from pandal.planner.precision import Precision
from pandal.planner.question import Load, MeasuredPoint, Serving
from pandal.planner.replica_speed import Speed, decode, prefill_flop, speed_by_theory
from pandal.planner.roofline import Hardware
from pandal.simulation.closed_loop import closed_loop
from pandal.simulation.engine import EngineModel

MODEL = "SmolLM2-135M-Instruct"
READ_BYTES = 256 * 2**20
MATRIX_SIZE = 1024
NUM_TRIES = 5


def best_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(NUM_TRIES):
        started_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)


def data_sheet() -> Accelerator:
    """Of all cores together, as one would find it printed for a GPU."""
    values = torch.from_numpy(np.ones(READ_BYTES // 4, np.float32))
    left, right = torch.ones(MATRIX_SIZE, MATRIX_SIZE), torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    return Accelerator(
        name="this machine",
        memory_gb=4,
        bandwidth_gb_per_s=READ_BYTES / best_s(values.sum) / 1e9,
        bf16_tflop_per_s=2 * MATRIX_SIZE**3 / best_s(lambda: left @ right) / 1e12,
        source="torch: sum of 256 MiB, product of two 1024 x 1024 float32 matrices",
    )


def measured(
    url: str, num_sequences: int, options: argparse.Namespace, path: Path, seed: int
) -> MeasuredPoint:
    """A closed loop of ``num_sequences``, by ``pandal bench``.

    Each needs a ``seed`` of its own: prompts seen before would come from the prefix cache, and a
    plan knows of none.
    """
    command = f"bench --url {url} --model {MODEL} --workload fixed --exact-lengths --out {path}"
    lengths = f"--prompt-tokens {options.prompt_tokens} --output-tokens {options.output_tokens}"
    load = (
        f"--concurrency {num_sequences} --requests {options.rounds * num_sequences} --seed {seed}"
    )
    subprocess.run(
        [sys.executable, "-m", "pandal", *command.split(), *lengths.split(), *load.split()],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return read_point(path)


def serving_on(gpu: Accelerator) -> Serving:
    return Serving(
        shape=find_model(MODEL),
        gpu=gpu,
        weight_precision=Precision.INT4,
        kv_precision=Precision.FP32,
        num_gpus=1,
        max_batch=32,
        usable_ratio=0.9,
        compute_ratio=0.5,
        bandwidth_ratio=0.7,
        load_bytes_per_s=2e9,
    )


def fitted(serving: Serving, alone: MeasuredPoint) -> Serving:
    """Efficiencies with which one stream would have been predicted exactly."""
    peak = Hardware(serving.gpu, 1, serving.weight_precision)
    load = load_of(alone)
    step_s = alone.tpot_s
    prompt_s = max(alone.ttft_s - step_s, 1e-3)
    compute_ratio = prefill_flop(serving, load) / peak.flop_per_s / prompt_s
    _, bound = decode(serving, load, replace(peak, compute_ratio=1e6), 1)
    return replace(serving, compute_ratio=compute_ratio, bandwidth_ratio=bound.value / step_s)


def load_of(point: MeasuredPoint) -> Load:
    return Load(
        prompt_tokens=point.prompt_tokens,
        output_tokens=point.output_tokens,
        requests_per_s=None,
        requests_per_day=None,
        headroom_ratio=0,
        max_tpot_s=None,
    )


def predicted(serving: Serving, point: MeasuredPoint) -> Speed:
    used = Hardware(
        serving.gpu,
        1,
        serving.weight_precision,
        compute_ratio=serving.compute_ratio,
        bandwidth_ratio=serving.bandwidth_ratio,
    )
    return speed_by_theory(serving, load_of(point), used, point.num_sequences)


def print_rows(title: str, serving: Serving, points: dict[int, MeasuredPoint]) -> None:
    print(f"\n{title}: compute efficiency {serving.compute_ratio:.2f}, ", end="")
    print(f"bandwidth efficiency {serving.bandwidth_ratio:.2f}\n")
    print("| sequences | TTFT ms: plan, measured | TPOT ms: plan, measured ", end="")
    print("| tokens/s: plan, measured | error |\n|---|---|---|---|---|")
    for num_sequences, point in points.items():
        speed = predicted(serving, point)
        rate = speed.output_tokens_per_s.value
        print(
            f"| {num_sequences} | {speed.ttft_s.value * 1e3:.0f}, {point.ttft_s * 1e3:.0f} "
            f"| {speed.tpot_s.value * 1e3:.1f}, {point.tpot_s * 1e3:.1f} "
            f"| {rate:.1f}, {point.output_tokens_per_s:.1f} "
            f"| {rate / point.output_tokens_per_s - 1:+.0%} |"
        )


def calibrated(points: dict[int, MeasuredPoint]) -> EngineModel:
    """From the time per token of the smallest and of the largest batch, without its prefills."""
    first, last = points[min(points)], points[max(points)]
    num_slots, prefill_s = max(points), max(first.ttft_s - first.tpot_s, 1e-3)
    others_s = (num_slots - 1) * prefill_s / last.output_tokens  # as in the plan's mean_tpot_s
    longer_s = max(0.0, last.tpot_s - others_s - first.tpot_s)
    per_sequence_s = longer_s / max(1, num_slots - min(points))
    return EngineModel(
        num_slots=num_slots,
        step_base_s=first.tpot_s - per_sequence_s,
        step_per_sequence_s=per_sequence_s,
        prefill_tokens_per_s=first.prompt_tokens / prefill_s,
        kv_tokens=10**9,
    )


def print_simulation(points: dict[int, MeasuredPoint]) -> None:
    model = calibrated(points)
    print(f"\nsimulated: a step of {model.step_base_s * 1e3:.1f} ms and ", end="")
    print(f"{model.step_per_sequence_s * 1e3:.2f} for each sequence, ", end="")
    print(f"{model.prefill_tokens_per_s:.0f} tokens/s of prefill\n")
    print("| sequences | requests/s: simulated, measured | error |\n|---|---|---|")
    for num_sequences, point in points.items():
        lengths = round(point.prompt_tokens), round(point.output_tokens)
        rate = closed_loop(replace(model, num_slots=num_sequences), *lengths).requests_per_s
        told = point.output_tokens_per_s / point.output_tokens
        print(f"| {num_sequences} | {rate:.2f}, {told:.2f} | {rate / told - 1:+.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    gpu = data_sheet()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}: ",
        end="",
    )
    print(f"{gpu.bandwidth_gb_per_s:.1f} GB/s, {gpu.bf16_tflop_per_s * 1e3:.0f} GFLOP/s in float32")
    with tempfile.TemporaryDirectory() as name, replica(model=MODEL) as server:
        measured(server.url, 1, options, Path(name) / "warm-up.json", seed=0)
        points = {
            n: measured(server.url, n, options, Path(name) / f"{n}.json", seed)
            for seed, n in enumerate(options.sequences, start=1)
        }
    print_rows("by the data sheet", serving_on(gpu), points)
    first = next(iter(points.values()))
    print_rows("fitted to the first row", fitted(serving_on(gpu), first), points)
    print_simulation(points)


if __name__ == "__main__":
    main()
