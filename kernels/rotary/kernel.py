"""Triton: one program per token and a few of its heads."""

import triton
import triton.language as tl


@triton.jit
def rotate(low, high, cos, sin):
    """Both halves of heads, turned."""
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def rotary_kernel(
    x_ptr,  # [num_tokens, num_heads, 2 * half], turned in place
    positions_ptr,  # [num_tokens]
    cos_ptr,  # [max_positions, half] float32
    sin_ptr,  # likewise
    x_stride,
    num_heads,
    half,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # power of two >= half
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    mask = (head < num_heads) & (column < half)
    angle = tl.load(positions_ptr + row).to(tl.int64) * half + column
    cos = tl.load(cos_ptr + angle, mask=column < half, other=0.0)  # [1, HALF_BLOCK]
    sin = tl.load(sin_ptr + angle, mask=column < half, other=0.0)
    low_ptr = x_ptr + row * x_stride + head * 2 * half + column  # [HEADS, HALF_BLOCK]
    low = tl.load(low_ptr, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(low_ptr + half, mask=mask, other=0.0).to(tl.float32)
    new_low, new_high = rotate(low, high, cos, sin)
    tl.store(low_ptr, new_low.to(x_ptr.dtype.element_ty), mask=mask)
    tl.store(low_ptr + half, new_high.to(x_ptr.dtype.element_ty), mask=mask)
