"""Triton: one program per tile of rows of one group and of columns; groups begin new tiles."""

import triton
import triton.language as tl


@triton.jit
def grouped_gemm_kernel(
    x_ptr,  # [num_rows / COPIES, in]
    weights_ptr,  # [num_groups, out, in]
    order_ptr,  # [num_rows] rows by their groups
    starts_ptr,  # [num_groups + 1] where in it each group begins
    scales_ptr,  # [num_groups] float32, of what is added
    y_ptr,  # [num_rows, out]
    x_stride,
    y_stride,
    in_features,
    out_features,
    num_groups,
    COPIES: tl.constexpr,
    IS_ADDED: tl.constexpr,  # to y, which has values
    GROUPS_BLOCK: tl.constexpr,  # power of two >= num_groups
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    DOT: tl.constexpr,
):
    group, first, end = _tile(starts_ptr, num_groups, tl.program_id(0), GROUPS_BLOCK, ROWS)
    if group >= num_groups:
        return
    place = first + tl.arange(0, ROWS)
    is_row = place < end
    row = tl.load(order_ptr + place, mask=is_row, other=0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < out_features
    weight_ptr = weights_ptr + (group.to(tl.int64) * out_features + column)[None, :] * in_features
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, in_features, INPUTS):
        k = start + tl.arange(0, INPUTS)
        x_tile_ptr = x_ptr + (row // COPIES)[:, None] * x_stride + k[None, :]
        x_mask = is_row[:, None] & (k < in_features)[None, :]
        x = tl.load(x_tile_ptr, mask=x_mask, other=0.0).to(DOT)
        weight_mask = is_column[None, :] & (k < in_features)[:, None]
        weight = tl.load(weight_ptr + k[:, None], mask=weight_mask, other=0.0).to(DOT)
        total = tl.dot(x, weight, total, input_precision="ieee")
    mask = is_row[:, None] & is_column[None, :]
    y_tile_ptr = y_ptr + row[:, None] * y_stride + column[None, :]
    if IS_ADDED:
        before = tl.load(y_tile_ptr, mask=mask, other=0.0).to(tl.float32)
        total = before + total * tl.load(scales_ptr + group)
    tl.store(y_tile_ptr, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _tile(starts_ptr, num_groups, tile, GROUPS_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(group, its rows of this tile: first and end); behind the last tile, no group's number."""
    lane = tl.arange(0, GROUPS_BLOCK)
    is_group = lane < num_groups
    start = tl.load(starts_ptr + lane, mask=is_group, other=0)
    end = tl.load(starts_ptr + lane + 1, mask=is_group, other=0)
    num_tiles = (end - start + ROWS - 1) // ROWS  # [GROUPS_BLOCK]
    tiles_through = tl.cumsum(num_tiles, axis=0)
    group = tl.sum((is_group & (tiles_through <= tile)).to(tl.int32), axis=0)
    is_own = lane == group
    own_start = tl.sum(tl.where(is_own, start, 0), axis=0)
    own_end = tl.sum(tl.where(is_own, end, 0), axis=0)
    tiles_before = tl.sum(tl.where(is_own, tiles_through - num_tiles, 0), axis=0)
    return group, own_start + (tile - tiles_before) * ROWS, own_end
