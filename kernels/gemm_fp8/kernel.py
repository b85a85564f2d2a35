"""Triton: products of float8, summed in float32; scales are multiplied in as late as may be."""

import triton
import triton.language as tl

from kernels.float8.kernel import encode_e4m3

# Hopper's tensor cores add float8 products with 14 bits: after so many the sum goes to float32.
# Triton's own default there is never.
IMPRECISE: tl.constexpr = tl.constexpr(32)


@triton.jit
def quantize_rows_kernel(
    x_ptr,  # [num_rows, in]
    codes_ptr,  # [num_rows, in] uint8
    scales_ptr,  # [num_rows, num_stretches] float32
    x_stride,
    in_features,
    stretch,  # inputs under one scale
    BLOCK: tl.constexpr,  # power of two >= stretch
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    column = tl.program_id(1) * stretch + lane
    mask = (lane < stretch) & (column < in_features)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / 448.0
    tl.store(codes_ptr + row * in_features + column, encode_e4m3(x / scale), mask=mask)
    tl.store(scales_ptr + row * tl.num_programs(1) + tl.program_id(1), scale)


@triton.jit(do_not_specialize=["num_rows"])
def gemm_fp8_kernel(
    x_ptr,  # [num_rows, in] float8
    x_scales_ptr,  # [num_rows] or [num_rows, num_blocks] float32
    weight_ptr,  # [out, in] float8
    weight_scales_ptr,  # [out] or [out / INPUTS, num_blocks] float32
    y_ptr,  # [num_rows, out]
    num_rows,
    in_features,
    out_features,
    num_blocks,  # of INPUTS each
    HAS_BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < num_rows, column < out_features
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(num_blocks):
        k = block * INPUTS + tl.arange(0, INPUTS)
        is_k = k < in_features
        x_tile_ptr = x_ptr + row.to(tl.int64)[:, None] * in_features + k[None, :]
        x = tl.load(x_tile_ptr, mask=is_row[:, None] & is_k[None, :], other=0.0)
        weight_tile_ptr = weight_ptr + column.to(tl.int64)[None, :] * in_features + k[:, None]
        weight = tl.load(weight_tile_ptr, mask=is_column[None, :] & is_k[:, None], other=0.0)
        if HAS_BLOCKS:
            x_scale = tl.load(x_scales_ptr + row * num_blocks + block, mask=is_row, other=0.0)
            weight_scale_ptr = weight_scales_ptr + column // INPUTS * num_blocks + block
            weight_scale = tl.load(weight_scale_ptr, mask=is_column, other=0.0)
            part = tl.dot(x, weight, max_num_imprecise_acc=IMPRECISE)
            total += part * x_scale[:, None] * weight_scale[None, :]
        else:
            total = tl.dot(x, weight, total, max_num_imprecise_acc=IMPRECISE)
    if not HAS_BLOCKS:
        total *= tl.load(x_scales_ptr + row, mask=is_row, other=0.0)[:, None]
        total *= tl.load(weight_scales_ptr + column, mask=is_column, other=0.0)[None, :]
    mask = is_row[:, None] & is_column[None, :]
    y_tile_ptr = y_ptr + row.to(tl.int64)[:, None] * out_features + column[None, :]
    tl.store(y_tile_ptr, total.to(y_ptr.dtype.element_ty), mask=mask)
