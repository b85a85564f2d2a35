"""The only names the model imports: check shapes, then launch."""

from typing import Final

import torch
import triton

from kernels.devices import runs_triton
from kernels.gemm_fp8.kernel import gemm_fp8_kernel, quantize_rows_kernel
from kernels.gemm_fp8.reference import (
    BLOCK_SIZE,
    Float8Rows,
    Float8Weight,
    gemm_fp8_reference,
    quantize_rows_reference,
)

_COLUMNS: Final = 128
_MAX_ROWS: Final = 128  # of a tile


def quantize_rows(x: torch.Tensor, *, in_blocks: bool) -> Float8Rows:
    """See ``reference.quantize_rows_reference``."""
    if x.stride(1) != 1:
        raise ValueError("expected contiguous rows")
    if not runs_triton(x):
        return quantize_rows_reference(x, in_blocks=in_blocks)
    num_rows, in_features = x.shape
    stretch = BLOCK_SIZE if in_blocks else max(1, in_features)
    shape = (num_rows, triton.cdiv(in_features, stretch))
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    if x.numel():
        quantize_rows_kernel[shape](
            x, codes, scales, x.stride(0), in_features, stretch,
            BLOCK=triton.next_power_of_2(stretch),
        )  # fmt: skip
    return Float8Rows(codes.view(torch.float8_e4m3fn), scales if in_blocks else scales[:, 0])


def gemm_fp8(x: Float8Rows, weight: Float8Weight, dtype: torch.dtype) -> torch.Tensor:
    """See ``reference.gemm_fp8_reference``; returns ``dtype``.

    x: quantized in blocks exactly if the weight is.
    """
    (num_rows, in_features), out_features = x.codes.shape, len(weight.codes)
    if weight.codes.shape[1] != in_features or (x.scales.ndim == 2) != weight.has_blocks:
        raise ValueError(f"rows of {in_features} and weight {weight.codes.shape} do not match")
    if not (x.codes.is_contiguous() and weight.codes.is_contiguous()):
        raise ValueError("expected contiguous codes")
    if not runs_triton(x.codes):
        return gemm_fp8_reference(x, weight).to(dtype)
    y = torch.empty(num_rows, out_features, dtype=dtype, device=x.codes.device)
    if num_rows:
        rows = max(16, min(_MAX_ROWS, triton.next_power_of_2(num_rows)))
        grid = (triton.cdiv(out_features, _COLUMNS), triton.cdiv(num_rows, rows))
        gemm_fp8_kernel[grid](
            x.codes, x.scales.contiguous(), weight.codes, weight.scales, y, num_rows, in_features,
            out_features, triton.cdiv(in_features, BLOCK_SIZE), HAS_BLOCKS=weight.has_blocks,
            ROWS=rows, COLUMNS=_COLUMNS, INPUTS=BLOCK_SIZE, num_warps=4 if rows < 64 else 8,
            num_stages=3,
        )  # fmt: skip
    return y
