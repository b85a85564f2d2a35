"""Triton: codes become 16-bit numbers in registers, a group of inputs at a time."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def gemm_w4a16_kernel(
    x_ptr,  # [num_rows, in]
    codes_ptr,  # [in / 8, out] int32
    zeros_ptr,  # [num_groups, out] int8
    scales_ptr,  # [num_groups, out]
    y_ptr,  # [num_rows, out]
    x_stride,
    num_rows,
    in_features,
    out_features,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,  # divides GROUP
    DOT: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < num_rows, column < out_features
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, in_features, INPUTS):
        k = start + tl.arange(0, INPUTS)
        x_tile_ptr = x_ptr + row.to(tl.int64)[:, None] * x_stride + k[None, :]
        x = tl.load(x_tile_ptr, mask=is_row[:, None], other=0.0).to(DOT)  # [ROWS, INPUTS]
        weight = _dequantize(codes_ptr, zeros_ptr, scales_ptr, start, column, is_column,
                             out_features, GROUP, COLUMNS, INPUTS)  # fmt: skip
        total = tl.dot(x, weight.to(DOT), total, input_precision="ieee")
    mask = is_row[:, None] & is_column[None, :]
    y_tile_ptr = y_ptr + row.to(tl.int64)[:, None] * out_features + column[None, :]
    tl.store(y_tile_ptr, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _dequantize(
    codes_ptr, zeros_ptr, scales_ptr, start, column, is_column, out_features,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """[INPUTS, COLUMNS] float32, of one group."""
    word = (start // 8 + tl.arange(0, INPUTS // 8)).to(tl.int64)
    place = word[:, None] * out_features + column[None, :]
    words = tl.load(codes_ptr + place, mask=is_column[None, :], other=0)
    shifts = 4 * tl.arange(0, 8)
    codes = (words[:, None, :] >> shifts[None, :, None]) & 15  # [INPUTS / 8, 8, COLUMNS]
    codes = tl.reshape(codes, (INPUTS, COLUMNS))
    group = column.to(tl.int64) + start // GROUP * out_features
    zero = tl.load(zeros_ptr + group, mask=is_column, other=0).to(tl.float32)
    scale = tl.load(scales_ptr + group, mask=is_column, other=0.0).to(tl.float32)
    return (codes.to(tl.float32) - zero[None, :]) * scale[None, :]


@triton.jit
def dequantize_kernel(
    codes_ptr,  # [in / 8, out] int32
    zeros_ptr,  # [num_groups, out] int8
    scales_ptr,  # [num_groups, out]
    weight_ptr,  # [in, out]
    out_features,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    start = tl.program_id(0) * INPUTS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < out_features
    weight = _dequantize(codes_ptr, zeros_ptr, scales_ptr, start, column, is_column, out_features,
                         GROUP, COLUMNS, INPUTS)  # fmt: skip
    place = (start + tl.arange(0, INPUTS)).to(tl.int64)[:, None] * out_features + column[None, :]
    tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=is_column[None, :])
