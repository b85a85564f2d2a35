"""CPU kernels at the levels with AVX-512, on a processor in software.

    pip install bochscpu-python==0.3.1    # in an environment of its own, or beside the others
    python -m benchmarks.emulated_levels [--levels avx512 avx512_vnni] [--suite]

For machines that lack AVX-512: what LLVM makes of the kernels for one that has it runs in Bochs's
processor (a Tiger Lake: AVX-512 F, BW, DQ, VL and VNNI, no FP16), inside this process and on its
memory.  Needs Linux on x86-64 with glibc 2.35.  Prints, for each kernel and level, the largest
difference from its reference, whether the difference is within the tests' tolerance, whether rows
have the same bits in every batch tried, and how many instructions of AVX-512's encoding were met.
An instruction that the processor lacks, or an address that is not aligned as it should be, ends the
case as a fault.  Times mean nothing here.  Exit status 1 if anything is wrong.

``--suite`` runs those of the kernels' tests that name a level there as well, some ten minutes for
each, and sampling's, which are compiled for the processor without naming a level.  By hand, for
one level (``skylake-avx512`` for ``avx512``):

    EMULATED_LEVEL=avx512_vnni NUMBA_CPU_NAME=tigerlake NUMBA_CPU_FEATURES= pytest tests/kernels/...
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import torch

from kernels.argmax.op import argmax
from kernels.argmax.reference import argmax_reference
from kernels.linear.formats import INTEGER_FORMATS, ActivationFormat, WeightFormat
from kernels.linear.op import linear
from kernels.linear.reference import linear_reference
from kernels.paged_attention.formats import AttentionSpecialization, KvFormat
from kernels.paged_attention.op import paged_attention
from kernels.paged_attention.plan import Segment
from kernels.paged_attention.reference import dense_keys, dense_values
from kernels.quantize.op import quantize
from kernels.quantize.reference import quantize_reference
from kernels.rms_norm.op import add_rms_norm
from kernels.rms_norm.reference import add_rms_norm_reference
from kernels.rotary.op import rotary
from kernels.rotary.reference import rotary_reference
from kernels.sampling.draw import Draw
from kernels.sampling.op import RowSampler
from kernels.sampling.reference import sample_reference
from kernels.silu_mul.op import silu_mul
from kernels.silu_mul.reference import silu_mul_reference
from kernels.vector_ir.levels import FeatureLevel
from tests.kernels import test_decoder_step as steps
from tests.kernels.test_linear import make_rows, make_weight
from tests.kernels.test_paged_attention import (
    expected,
    queries,
    random_cache,
    random_int8_cache,
    segments_of,
)
from tests.kernels.test_rotary import SLOTS, angle_tables

# LLVM's names of processors with just these features.
PROCESSORS: Final = {
    FeatureLevel.AVX512_VNNI: "tigerlake",
    FeatureLevel.AVX512: "skylake-avx512",
}
SUITE: Final = (
    "vector_ir", "argmax", "silu_mul", "rms_norm", "quantize", "rotary", "linear", "sampling",
    "paged_attention", "decoder_step",
)  # fmt: skip
_BATCHES: Final = (1, 2, 3, 7, 32, 33)  # rows; around where kernels change their way
_LONGEST_TEST_S: Final = "1200"

Compute = Callable[[slice], torch.Tensor]  # of these rows alone


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    largest_error: float
    is_close: bool
    has_same_bits: bool
    num_evex: int  # of AVX-512's encoding, decoded for this case and none before
    fault: str | None = None

    @property
    def is_right(self) -> bool:
        return self.fault is None and self.is_close and self.has_same_bits

    def __str__(self) -> str:
        if self.fault is not None:
            return f"FAULT: {self.fault}"
        closeness = "ok" if self.is_close else "WRONG"
        bits = "same bits" if self.has_same_bits else "OTHER BITS"
        return f"{closeness} {self.largest_error:.1e}, {bits}, {self.num_evex}"


@dataclass(frozen=True, slots=True)
class Case:
    """compute: the rows of a slice as a batch; those of ``reference`` when it is all of them."""

    name: str
    compute: Compute
    reference: torch.Tensor
    rtol: float = 0.0
    atol: float = 0.0
    batches: Sequence[slice] = tuple(slice(0, size) for size in _BATCHES)


def cases(level: FeatureLevel, team: Any) -> Iterator[Case]:
    yield from _row_cases(level, team)
    yield from _linear_cases(level, team)
    yield from _attention_cases(level, team)
    yield _rotary_case(level, team)
    yield _sampling_case(level, team)
    yield _step_case(level, team)


def _linear_cases(level: FeatureLevel, team: Any) -> Iterator[Case]:
    formats = [(kind, ActivationFormat.FLOAT32) for kind in WeightFormat]
    formats += [(kind, ActivationFormat.INT8) for kind in INTEGER_FORMATS]
    for weight_format, activation_format in formats:
        packed, _ = make_weight(weight_format, 100, 160)
        x = make_rows(64, 160)
        yield Case(
            f"linear {weight_format} x {activation_format}",
            lambda rows, x=x, packed=packed, activations=activation_format: linear(
                x[rows], packed, team, level, activations
            ),
            linear_reference(x, packed, activation_format),
            rtol=1e-5,
            atol=2e-5,
        )


def _attention_cases(level: FeatureLevel, team: Any) -> Iterator[Case]:
    for kv_format in KvFormat:
        spec = AttentionSpecialization(level, kv_format, 64, 3, 16)
        is_int8 = kv_format is KvFormat.INT8
        cache = random_int8_cache(spec) if is_int8 else random_cache(spec)
        dense = (dense_keys(cache[0], spec), dense_values(cache[1], spec)) if is_int8 else cache
        (whole,) = segments_of([(0, 150)])
        q = queries(spec, [whole])

        def attended(rows, spec=spec, cache=cache, table=whole.block_table, q=q):
            first, last, _ = rows.indices(150)
            segment = Segment(0, last - first, first, table)
            return paged_attention(spec, q[first:last], cache, [segment], team)

        yield Case(
            f"attention, keys and values {kv_format}",
            attended,
            expected(q, dense, [whole]),
            rtol=1e-5,
            atol=2e-6,
            # Decodes of one token, and prefills of several after a context.
            batches=[slice(0, 1), slice(149, 150), slice(33, 70), slice(100, 101), slice(117, 150)],
        )


def _row_cases(level: FeatureLevel, team: Any) -> Iterator[Case]:
    x, delta, weight = make_rows(40, 576), make_rows(41, 576)[:40], make_rows(1, 576)[0]
    yield Case(
        "rms norm",
        lambda rows: add_rms_norm(x[rows], delta[rows], weight, 1e-5, team, level)[1],
        add_rms_norm_reference(x, delta, weight, 1e-5)[1],
        rtol=1e-5,
        atol=1e-5,
    )
    yield Case(
        "silu and product",
        lambda rows: silu_mul(x[rows], team, level),
        silu_mul_reference(x),
        rtol=2e-6,
        atol=1e-6,
    )
    yield Case(
        "quantizing",
        lambda rows: quantize(x[rows], team, level)[0].float(),
        quantize_reference(x)[0].float(),
    )
    logits = make_rows(40, 1001)
    yield Case(
        "arg-max", lambda rows: argmax(logits[rows], team, level).float(), argmax_reference(logits)
    )


def _rotary_case(level: FeatureLevel, team: Any) -> Case:
    """Queries turned in place, then keys as they were stored."""
    spec = AttentionSpecialization(level, KvFormat.FLOAT32, 64, 3, 16)
    source, positions = make_rows(3, 640), torch.tensor([31, 0, 5])
    cos, sin = angle_tables(64)

    def turned(rows: slice) -> torch.Tensor:
        keys, values = torch.zeros(2, 5, 2, spec.block_head_bytes, dtype=torch.uint8)
        qkv, slots = source[rows].clone(), SLOTS[rows]
        rotary(spec, qkv, (positions[rows], slots), (cos, sin), (keys, values), team)
        heads = qkv.view(len(qkv), 10, 64)
        heads[:, 6:8] = dense_keys(keys, spec)[slots // 16, :, :, slots % 16]
        heads[:, 8:] = dense_values(values, spec)[slots // 16, :, slots % 16]
        return heads

    heads = source.view(3, 10, 64)
    reference = torch.cat(
        [rotary_reference(heads[:, :8], cos[positions], sin[positions]), heads[:, 8:]], dim=1
    )
    batches = [slice(0, 1), slice(1, 3)]
    return Case("rotary and write", turned, reference, rtol=1.3e-6, atol=1e-5, batches=batches)


def _sampling_case(level: FeatureLevel, team: Any) -> Case:
    logits = 3 * make_rows(40, 1000).numpy()
    generator = np.random.default_rng(5)
    draws = [Draw(float(generator.random()), temperature=0.8, top_k=50, top_p=0.95) for _ in logits]
    sampler = RowSampler(1000, team, level)
    reference = [sample_reference(row, draw) for row, draw in zip(logits, draws, strict=True)]

    def drawn(rows: slice) -> torch.Tensor:
        return torch.tensor(sampler.sample(logits, range(len(logits))[rows], draws[rows]))

    return Case("sampling", drawn, torch.tensor(reference))


def _step_case(level: FeatureLevel, team: Any) -> Case:
    """Chunks of a prefill, one by one or all at once."""
    weights, ids = steps.tiny_weights(), steps.tokens(70)

    def logits(rows: slice) -> torch.Tensor:
        sequences = steps.make(steps.TINY, weights, team, level)
        first, last, _ = rows.indices(len(ids))
        if first:
            sequences.run(("a", ids[:first], 0))
        return torch.from_numpy(sequences.logits(("a", ids[first:last], first)))

    return Case(
        "whole step, q4_1",
        logits,
        steps.reference(steps.TINY, weights, ids),
        rtol=1e-4,
        atol=1e-4,
        batches=[slice(0, 1), slice(33, 34), slice(40, 70)],
    )


def measured(case: Case) -> Outcome:
    from tests.kernels.emulated_cpu import EmulationError
    from tests.kernels.emulated_team import emulated_cpu

    before = emulated_cpu().num_evex
    try:
        whole = case.compute(slice(None))
        parts = [(rows, case.compute(rows)) for rows in case.batches]
    except EmulationError as error:
        return Outcome(
            name=case.name, largest_error=float("nan"), is_close=False, has_same_bits=False,
            num_evex=emulated_cpu().num_evex - before, fault=str(error),
        )  # fmt: skip
    return Outcome(
        name=case.name,
        largest_error=float((whole - case.reference).abs().max()),
        is_close=torch.allclose(whole.float(), case.reference.float(), case.rtol, case.atol),
        has_same_bits=all(torch.equal(part, whole[rows]) for rows, part in parts),
        num_evex=emulated_cpu().num_evex - before,
    )


def measure_level(level: FeatureLevel) -> None:
    """A line of JSON per case.  In a process that compiles for the level's processor."""
    from tests.kernels.emulated_team import EmulatedTeam

    with EmulatedTeam(2) as team:
        for case in cases(level, team):
            print(msgspec.json.encode(measured(case)).decode(), flush=True)


def environment(level: FeatureLevel) -> dict[str, str]:
    return {
        **os.environ,
        "EMULATED_LEVEL": level,
        "NUMBA_CPU_NAME": PROCESSORS[level],
        "NUMBA_CPU_FEATURES": "",  # none but the processor's
    }


def outcomes_of(level: FeatureLevel) -> Iterator[Outcome]:
    command = [sys.executable, "-m", __spec__.name, "--in-process", level]
    with subprocess.Popen(
        command, env=environment(level), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield msgspec.json.decode(line, type=Outcome)
    if process.returncode:
        raise SystemExit(f"{level}: exit status {process.returncode}")


def suite_status(level: FeatureLevel) -> int:
    files = [f"tests/kernels/test_{name}.py" for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-q", "-k", f"{level} or sampling", *files]
    command += ["--timeout", _LONGEST_TEST_S]
    return subprocess.run(command, env=environment(level), check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", type=FeatureLevel, default=list(PROCESSORS))
    parser.add_argument("--suite", action="store_true")
    parser.add_argument("--in-process", type=FeatureLevel, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if importlib.util.find_spec("bochscpu") is None:
        raise SystemExit("the emulated processor is missing: pip install bochscpu-python==0.3.1")
    if options.in_process is not None:
        measure_level(options.in_process)
        return
    are_right = []
    print("| kernel | level | against the reference, in batches, AVX-512 instructions |")
    print("|---|---|---|")
    for level in options.levels:
        for outcome in outcomes_of(level):
            print(f"| {outcome.name} | {level} | {outcome} |", flush=True)
            are_right.append(outcome.is_right)
    if options.suite:
        are_right += [suite_status(level) == 0 for level in options.levels]
    raise SystemExit(not all(are_right))


if __name__ == "__main__":
    main()
