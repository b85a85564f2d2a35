"""Everything there is to know about a GPU's path, in one run of minutes, with a table at the end.

    python -m benchmarks.gpu_check [--sections tests kernels engine peers] [--tiny]

tests    every test of Triton's kernels and of the engine's steps, compiled for this device
kernels  each kernel's share of the ceilings measured in the same run, or its speed beside torch's
engine   steps of Llama-3-8B's shape with random weights against the roofline; graphs and launching
         ahead, on and off
peers    tokens a second of transformers' continuous batching, same shape, same machine

Returns 1 when tests failed, or did not run to their end; never for a target.

Without a GPU everything is tiny and Triton interprets: that shows that the script works, no more.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu.measuring import Row

SECTIONS = ("tests", "kernels", "engine", "peers")
ROOT = Path(__file__).parents[1]
TINY_TESTS = ("tests/kernels/test_block_copy.py",)
TESTS = (
    *TINY_TESTS,
    "tests/kernels/test_elementwise_triton.py", "tests/kernels/test_kv_write.py",
    "tests/kernels/test_paged_attention_triton.py", "tests/kernels/test_sampling_triton.py",
    "tests/kernels/test_gemm_w4a16.py", "tests/kernels/test_gemm_fp8.py",
    "tests/kernels/test_grouped_gemm.py", "tests/kernels/test_moe.py",
    "tests/kernels/test_lora.py", "tests/kernels/test_far_offsets.py",
    "tests/replica/test_gpu_backend.py", "tests/replica/test_gpu_linear.py",
    "tests/replica/test_gpu_memory.py", "tests/replica/test_gpu_runner.py",
    "tests/replica/test_gpu_warm_up.py", "tests/replica/test_gpu_adapters.py",
    "tests/replica/test_gpu_experts.py", "tests/replica/test_gpu_rope.py",
    "tests/replica/test_int4_checkpoints.py",
)  # fmt: skip
TESTS_DEADLINE_S = 240.0  # half of what the whole script may take
HAS_GPU = Path("/dev/nvidiactl").exists()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--tiny", action="store_true", default=not HAS_GPU)
    options = parser.parse_args(arguments)
    if not HAS_GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton
    from benchmarks.gpu.measuring import print_table

    started = time.perf_counter()
    rows = []
    for row in _rows(options.sections, is_tiny=options.tiny):
        rows.append(replace(row, target=None) if options.tiny and row.section != "tests" else row)
        print_table(rows[-1:])
    print("\nall of it, and what it was held against")
    print_table(rows)
    short = [row for row in rows if row.verdict == "short"]
    print(f"{time.perf_counter() - started:.0f} s; {len(short)} of "
          f"{sum(row.target is not None for row in rows)} targets short"
          f"{' (tiny: times mean nothing)' if options.tiny else ''}")  # fmt: skip
    return int(any(row.section == "tests" for row in short))


def _rows(sections: Sequence[str], *, is_tiny: bool) -> Iterator["Row"]:
    import torch

    from benchmarks.gpu.measuring import Row, measure_ceilings
    from replica.gpu.device import CpuDevice, CudaDevice, Device

    device: Device = CudaDevice() if HAS_GPU else CpuDevice(memory_bytes=1 << 30)
    print(f"{device.description}, torch {torch.__version__}, {_commit()}", flush=True)
    if "tests" in sections:
        yield _tests(is_tiny=is_tiny)
    ceilings = measure_ceilings(device.torch_device, is_tiny=is_tiny)
    yield Row("ceilings", "a large copy", ceilings.bytes_per_s / 1e9, "GB/s")
    yield Row("ceilings", "a large bfloat16 product", ceilings.flop_per_s / 1e12, "TFLOP/s")
    with torch.inference_mode():
        if "kernels" in sections:
            from benchmarks.gpu import kernels

            sizes = kernels.TINY if is_tiny else kernels.Sizes()
            yield from kernels.KernelSection(device.torch_device, sizes).rows(ceilings)
        if "engine" in sections or "peers" in sections:
            from benchmarks.gpu import engine

            config = engine.TINY_LLAMA if is_tiny else engine.LLAMA_3_8B
            if "engine" in sections:
                load = engine.TINY if is_tiny else engine.FULL
                yield from engine.EngineSection(device, config, load).rows(ceilings)
    if "peers" in sections:
        from benchmarks.gpu import peers

        yield from peers.rows(device, config, is_tiny=is_tiny)


def _tests(*, is_tiny: bool) -> "Row":
    """Failures, and what pytest says of them."""
    from benchmarks.gpu.measuring import Row

    if importlib.util.find_spec("pytest") is None:
        print("pytest is not installed: no test ran")
        return Row("tests", "could not run", 1.0, "failed", 0.0, is_at_most=True)
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")  # which takes long to import
    command = [sys.executable, "-m", "pytest", "-q", "--whole-triton", *without]
    command += TINY_TESTS if is_tiny else TESTS
    # Tests that poison memory ask torch for determinism, and torch asks CUDA's products for this.
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=TESTS_DEADLINE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        print((late.stdout or b"").decode(errors="replace")[-2000:])
        return Row("tests", f"no end within {TESTS_DEADLINE_S:.0f} s", 1.0, "failed", 0.0,
                   is_at_most=True)  # fmt: skip
    print(done.stdout[-2000:], done.stderr[-2000:])
    said = [line for line in done.stdout.splitlines() if line.strip()] or ["pytest said nothing"]
    return Row("tests", said[-1][:60], float(done.returncode != 0), "failed", 0.0,
               is_at_most=True)  # fmt: skip


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
