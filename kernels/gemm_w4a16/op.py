"""The only names the model imports: check shapes, then launch."""

from typing import Final

import torch
import triton

from kernels.devices import dot_dtype, runs_triton
from kernels.gemm_w4a16.formats import Int4Weight
from kernels.gemm_w4a16.kernel import dequantize_kernel, gemm_w4a16_kernel
from kernels.gemm_w4a16.reference import dequantize_reference, gemm_w4a16_reference

_INPUTS: Final = 64
_COLUMNS: Final = 64
_MAX_ROWS: Final = 64  # of a tile


def gemm_w4a16(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """See ``reference.gemm_w4a16_reference``; returns x's dtype.

    Few rows are bound by reading codes, a quarter of the bytes.  For many, ``dequantize`` and a
    plain product are faster: whoever calls decides by measurement.
    """
    _check(x, weight)
    if not runs_triton(x):
        return gemm_w4a16_reference(x, weight).to(x.dtype)
    num_rows, out_features = len(x), weight.out_features
    y = x.new_empty(num_rows, out_features)
    if num_rows:
        rows = max(16, min(_MAX_ROWS, triton.next_power_of_2(num_rows)))
        grid = (triton.cdiv(out_features, _COLUMNS), triton.cdiv(num_rows, rows))
        gemm_w4a16_kernel[grid](
            x, weight.codes, weight.zeros, weight.scales, y, x.stride(0), num_rows,
            weight.in_features, out_features, GROUP=weight.group_size, ROWS=rows,
            COLUMNS=_COLUMNS, INPUTS=min(_INPUTS, weight.group_size), DOT=dot_dtype(x.dtype),
            num_warps=4, num_stages=4,
        )  # fmt: skip
    return y


def dequantize(weight: Int4Weight) -> torch.Tensor:
    """[out, in] of the scales' dtype; a view with contiguous columns."""
    if not runs_triton(weight.codes):
        return dequantize_reference(weight).to(weight.scales.dtype)
    in_features, out_features = weight.in_features, weight.out_features
    dense = weight.scales.new_empty(in_features, out_features)
    inputs = min(_INPUTS, weight.group_size)
    grid = (in_features // inputs, triton.cdiv(out_features, _COLUMNS))
    dequantize_kernel[grid](
        weight.codes, weight.zeros, weight.scales, dense, out_features, GROUP=weight.group_size,
        COLUMNS=_COLUMNS, INPUTS=inputs,
    )  # fmt: skip
    return dense.T


def _check(x: torch.Tensor, weight: Int4Weight) -> None:
    if x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(f"expected rows of {weight.in_features}, got {tuple(x.shape)}")
    if weight.group_size < 16 or weight.group_size & (weight.group_size - 1):
        raise ValueError(f"expected groups of a power of two, 16 or more: {weight.group_size}")
