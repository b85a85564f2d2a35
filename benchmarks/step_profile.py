"""Where a step's time goes, beside what this machine could do at most, measured in the same run.

    python -m benchmarks.step_profile MODEL.gguf [--kv bfloat16] [--activations int8] ...

The compiled step stamps the end of each of its stages; the difference to the stage before is that
stage's; each stage is taken from the round in which it was shortest, so that another program's
turn on a core counts in as few as can be.  What no stage accounts for is Python's: building the
batch and waking the threads.  The
bound of a stage is the longer of reading what it must read once and multiplying what it must
multiply; stages wait for each other, so the bound of a step is their sum.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cpu_ceilings import Ceilings, measure_ceilings
from benchmarks.kernels_cpu import BLOCK_SIZE, batch_of, fill, load
from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.model import DecoderShape, DecoderWeights, KvCache
from kernels.decoder_step.op import DecoderStep
from kernels.linear.formats import ActivationFormat
from kernels.paged_attention.formats import KvFormat
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.compile_cache import compiling_into
from kernels.vector_ir.levels import FeatureLevel, detect_level

GROUPS: Mapping[str, str] = {
    "qkv": "linears", "output": "linears", "gate_up": "linears", "down": "linears",
    "lm_head": "lm_head", "attention": "attention", "attention_joins": "attention",
    "argmax": "sampling",
}  # fmt: skip
GLUE = "glue"  # norms, rotary, gate, quantizing, embedding, gathering
PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class Work:
    read_bytes: float
    operations: float  # multiplications and additions
    is_integer: bool = False

    def bound_s(self, ceilings: Ceilings) -> float:
        speed = ceilings.int8_per_s if self.is_integer else ceilings.float32_per_s
        return max(self.read_bytes / ceilings.read_bytes_per_s, self.operations / speed)


def work_of(
    batch: StepBatch,
    shape: DecoderShape,
    weights: DecoderWeights,
    kv_format: KvFormat,
    activation_format: ActivationFormat,
) -> dict[str, Work]:
    matrices = [m for w in weights.layers for m in (w.qkv, w.output, w.gate_up, w.down)]
    size = sum(m.out_features * m.in_features for m in matrices)
    num_read = sum(s.start + s.num_tokens for s in batch.segments)
    num_seen = sum(
        s.num_tokens * s.start + s.num_tokens * (s.num_tokens + 1) // 2 for s in batch.segments
    )
    token_bytes = 2 * shape.num_kv_heads * kv_format.head_bytes(shape.head_dim)
    is_integer = activation_format is ActivationFormat.INT8
    head_size = weights.lm_head.out_features * weights.lm_head.in_features
    return {
        "linears": Work(
            sum(m.storage.nbytes for m in matrices), 2 * size * len(batch.token_ids), is_integer
        ),
        "attention": Work(
            shape.num_layers * num_read * token_bytes,
            shape.num_layers * 4 * num_seen * shape.num_heads * shape.head_dim,
        ),
        "lm_head": Work(weights.lm_head.storage.nbytes, 2 * head_size * len(batch.sampled_rows)),
    }


@dataclass(frozen=True, slots=True)
class Profiler:
    step: DecoderStep
    rounds: int
    ticks_per_s: float

    def run(self, batch: StepBatch) -> tuple[float, dict[str, float]]:
        """Seconds of a step, the median, and of each group."""
        self.step.run(batch)
        walls, stages, rests = [], [], []
        for _ in range(self.rounds):
            started_s = time.perf_counter()
            self.step.run(batch)
            walls.append(time.perf_counter() - started_s)
            stages.append(self._stage_seconds())
            rests.append(walls[-1] - sum(stages[-1]))
        names, _ = self.step.stage_ends()
        groups = dict.fromkeys((*dict.fromkeys(GROUPS.values()), GLUE), 0.0)
        for name, *seconds in zip(names[1:], *stages, strict=True):
            groups[GROUPS.get(name, GLUE)] += min(seconds)
        return statistics.median(walls), groups | {PYTHON: min(rests)}

    def _stage_seconds(self) -> Sequence[float]:
        """Of all but the first, whose beginning has no stamp."""
        ends = self.step.stage_ends()[1]
        ends = np.maximum.accumulate(ends)  # a stage without work has no stamp either
        return [float(ticks) / self.ticks_per_s for ticks in np.diff(ends)]


def ticks_per_s(step: DecoderStep, batch: StepBatch) -> float:
    """Of the CPU's time stamps: between the ends of two steps, half a second apart."""

    def now() -> tuple[float, int]:
        step.run(batch)
        return time.perf_counter(), int(step.stage_ends()[1].max())

    (first_s, first), num_ticks = now(), 0
    while (last := now())[0] < first_s + 0.5:
        pass
    num_ticks = last[1] - first
    if num_ticks == 0:
        raise SystemExit("this CPU's time stamps cannot be read")
    return num_ticks / (last[0] - first_s)


def print_profile(
    title: str, wall_s: float, groups: Mapping[str, float], work: Mapping[str, Work], top: Ceilings
) -> None:
    bounds = {name: one.bound_s(top) for name, one in work.items()}
    bound_s, least_s = sum(bounds.values()), sum(groups.values())
    print(
        f"\n{title}: median {wall_s * 1e3:.2f} ms, shortest stages {least_s * 1e3:.2f} ms, "
        f"bound {bound_s * 1e3:.2f} ms: {100 * bound_s / least_s:.0f} % of it reached"
    )
    print("| part | ms | share | GB/s | GFLOP/s | bound ms | of its bound |")
    print("|---|---|---|---|---|---|---|")
    for name, seconds in groups.items():
        share = f"| {name} | {seconds * 1e3:.2f} | {100 * seconds / least_s:.0f} % "
        if name not in work or seconds == 0:
            print(share + "| | | | |")
            continue
        print(
            f"{share}| {work[name].read_bytes / seconds / 1e9:.1f} "
            f"| {work[name].operations / seconds / 1e9:.0f} "
            f"| {bounds[name] * 1e3:.2f} | {100 * bounds[name] / seconds:.0f} % |"
        )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv", type=KvFormat, default=KvFormat.FLOAT32)
    parser.add_argument("--activations", type=ActivationFormat, default=ActivationFormat.FLOAT32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", type=FeatureLevel, default=detect_level())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 16, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2000])
    parser.add_argument(
        "--compile-cache-dir", type=Path, default=Path.home() / ".cache/pandal/kernels"
    )
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse_arguments()
    shape, weights = load(arguments.model)
    num_sequences = max(arguments.sequences, default=1)
    cache = KvCache(shape, arguments.kv, 1 + num_sequences * 2048 // BLOCK_SIZE, BLOCK_SIZE)
    with ThreadTeam(arguments.threads) as team:
        with compiling_into(arguments.compile_cache_dir):
            step = DecoderStep(
                shape,
                weights,
                cache,
                team,
                max_rows=max([512, *arguments.prefill]),
                max_sampled_rows=num_sequences,
                activation_format=arguments.activations,
                level=arguments.level,
            )
        ceilings = measure_ceilings(team, arguments.level)
        print(
            f"{step.level}, {arguments.threads} threads, {arguments.activations} activations, "
            f"{arguments.kv} keys and values; the machine {ceilings}"
        )
        fill(step, num_sequences, arguments.context, shape.vocab_size)
        batches = {
            f"decode, {n} at {arguments.context}": batch_of(
                n, arguments.context, 1, shape.vocab_size
            )
            for n in arguments.sequences
        } | {f"prefill, {n}": batch_of(1, 0, n, shape.vocab_size) for n in arguments.prefill}
        rate = ticks_per_s(step, next(iter(batches.values())))
        profiler = Profiler(step, arguments.rounds, rate)
        for title, batch in batches.items():
            wall_s, groups = profiler.run(batch)
            work = work_of(batch, shape, weights, arguments.kv, arguments.activations)
            print_profile(title, wall_s, groups, work, ceilings)


if __name__ == "__main__":
    main()
