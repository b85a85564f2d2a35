"""Compiles each kernel for compute capability 9.0, as a program: no GPU, and nothing is run.

    python -m tests.kernels.hopper_compilation

Triton must not interpret, so this is a process of its own.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels.block_copy.kernel import block_copy_kernel
from kernels.gemm_fp8.kernel import gemm_fp8_kernel, quantize_rows_kernel
from kernels.gemm_w4a16.kernel import dequantize_kernel, gemm_w4a16_kernel
from kernels.grouped_gemm.kernel import grouped_gemm_kernel
from kernels.kv_write.kernel import kv_write_kernel
from kernels.moe.kernel import combine_experts_kernel
from kernels.paged_attention.kernel import merge_splits_kernel, paged_attention_kernel
from kernels.rms_norm.kernel import add_rms_norm_kernel
from kernels.rotary.kernel import rotary_kernel
from kernels.sampling.kernel import sample_kernel
from kernels.sampling.logits_kernel import bias_kernel, logprobs_kernel, penalize_kernel
from kernels.silu_mul.kernel import silu_mul_kernel

MOST_SHARED_BYTES = 227 << 10  # of one program, on such a GPU


class Hopper:
    """What Triton asks a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def of(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(16, dtype=dtype)


BF16, F32, F64 = of(torch.bfloat16), of(torch.float32), of(torch.float64)
I8, U8, I32, I64 = of(torch.int8), of(torch.uint8), of(torch.int32), of(torch.int64)
F8 = of(torch.float8_e4m3fn)


def launches() -> Iterator[Launch]:
    norm = {"HAS_DELTA": True, "BLOCK": 4096, "num_warps": 16}
    yield Launch(add_rms_norm_kernel, (BF16, BF16, BF16, BF16, 4096, 4096, 4096, 4096, 1e-5), norm)
    yield Launch(silu_mul_kernel, (BF16, BF16, 28672, 14336), {"BLOCK": 1024})
    turning = {"HEADS": 8, "HALF_BLOCK": 64}
    yield Launch(rotary_kernel, (BF16, I64, F32, F32, 4096, 32, 48), turning)
    for cache, has_norms in ((BF16, False), (U8, True)):
        sizes = turning | {"IS_FLOAT8": cache is U8, "HAS_NORMS": has_norms}
        pointers = (BF16, I64, I64, F32, F32, cache, cache, F32, F32, BF16, BF16)
        yield Launch(kv_write_kernel, (*pointers, 6144, 32, 8, 64, 1e-6), sizes)
    yield Launch(block_copy_kernel, (I64, I64, I64, I64, 1 << 20, 1 << 20, 2048), {"BLOCK": 1024})
    yield from attentions(BF16)
    yield from products(BF16)
    yield from samplings()


def attentions(x: torch.Tensor) -> Iterator[Launch]:
    for head_dim, group, rows, cache, is_split, has_rest in (
        (128, 4, 16, x, True, False),
        (64, 3, 64, F8, False, True),
        (96, 8, 64, x, False, False),
    ):
        sizes = {
            "GROUP": group, "HEAD_DIM": head_dim, "HEAD_BLOCK": 64 if head_dim == 64 else 128,
            "ROWS": rows, "KEYS": 32, "HAS_SOFTCAP": has_rest, "HAS_WINDOW": has_rest,
            "IS_SPLIT": is_split, "DOT": tl.bfloat16, "num_warps": 4, "num_stages": 3,
        }  # fmt: skip
        pointers = (x, cache, cache, F32, F32, I32, I32, I32, F32 if is_split else x, F32)
        yield Launch(
            paged_attention_kernel, (*pointers, 4096, 64, 512, 16, 0.1, 30.0, 4096, 0), sizes
        )
    merge = {"HEAD_DIM": 96, "HEAD_BLOCK": 128, "num_warps": 1}
    yield Launch(merge_splits_kernel, (F32, F32, x, 7), merge)


def products(x: torch.Tensor) -> Iterator[Launch]:
    four_bit = {"GROUP": 128, "COLUMNS": 64, "INPUTS": 64}
    for rows in (16, 64):
        sizes = four_bit | {"ROWS": rows, "DOT": tl.bfloat16, "num_stages": 4}
        yield Launch(gemm_w4a16_kernel, (x, I32, I8, x, x, 4096, rows, 4096, 4096), sizes)
        for has_blocks in (False, True):
            sizes = {"HAS_BLOCKS": has_blocks, "ROWS": rows, "COLUMNS": 128, "INPUTS": 128}
            yield Launch(gemm_fp8_kernel, (F8, F32, F8, F32, x, rows, 4096, 4096, 32), sizes)
    yield Launch(dequantize_kernel, (I32, I8, x, x, 4096), four_bit)
    yield Launch(quantize_rows_kernel, (x, U8, F32, 4096, 4096, 128), {"BLOCK": 128})
    tiles = {"GROUPS_BLOCK": 8, "ROWS": 16, "COLUMNS": 64, "INPUTS": 64, "DOT": tl.bfloat16}
    for is_added in (False, True):
        sizes = tiles | {"COPIES": 2, "IS_ADDED": is_added}
        pointers = (x, x, I64, I32, F32, x)
        yield Launch(grouped_gemm_kernel, (*pointers, 4096, 4096, 4096, 4096, 8), sizes)
    yield Launch(combine_experts_kernel, (x, F32, x, 4096), {"TOP_K": 2, "BLOCK": 1024})


def samplings() -> Iterator[Launch]:
    for are_greedy in (False, True):
        sizes = {"ARE_GREEDY": are_greedy, "BLOCK": 4096, "num_warps": 16}
        pointers = (F32, F64, I32, F64, F64, F64, F32, I64)
        yield Launch(sample_kernel, (*pointers, 128256, 128256), sizes)
    pointers = (F32, I32, I8, F32, F32, F32)
    yield Launch(penalize_kernel, (*pointers, 128256, 128256), {"BLOCK": 1024})
    yield Launch(bias_kernel, (F32, I64, I64, F32, 128256, 128256), {"num_warps": 1})
    sizes = {"BLOCK": 4096, "IDS_BLOCK": 32, "num_warps": 8}
    yield Launch(logprobs_kernel, (F32, I64, F32, 128256, 128256, 6), sizes)


def main() -> None:
    driver.set_active(Hopper())
    for kernel, arguments, constants in launches():
        compiled = kernel.warmup(*arguments, grid=(1,), **constants)
        assert "cubin" in compiled.asm, kernel.__name__
        assert compiled.metadata.shared <= MOST_SHARED_BYTES, kernel.__name__
        print(f"{kernel.__name__} {compiled.metadata.shared}")  # noqa: T201 - a program's answer


if __name__ == "__main__":
    main()
