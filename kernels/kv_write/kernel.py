"""Triton: one program per token and a few of its heads, of whatever kind they are."""

import triton
import triton.language as tl

from kernels.float8.kernel import encode_e4m3
from kernels.rotary.kernel import rotate


@triton.jit
def kv_write_kernel(
    qkv_ptr,  # [num_tokens, heads + 2 * kv_heads, 2 * half]; queries are turned in place
    positions_ptr,  # [num_tokens]
    slots_ptr,  # [num_tokens]
    cos_ptr,  # [max_positions, half] float32
    sin_ptr,  # likewise
    keys_ptr,  # [num_slots, kv_heads, 2 * half]; float8 as uint8
    values_ptr,  # likewise
    key_scales_ptr,  # [kv_heads] float32
    value_scales_ptr,  # likewise
    q_norm_ptr,  # [2 * half]
    k_norm_ptr,  # likewise
    qkv_stride,
    num_heads,
    num_kv_heads,
    half,
    eps,
    IS_FLOAT8: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # power of two >= half
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    is_column = column < half
    mask = (head < num_heads + 2 * num_kv_heads) & is_column
    source_ptr = qkv_ptr + row * qkv_stride + head * 2 * half + column
    low = tl.load(source_ptr, mask=mask, other=0.0).to(tl.float32)  # [HEADS, HALF_BLOCK]
    high = tl.load(source_ptr + half, mask=mask, other=0.0).to(tl.float32)
    is_query, is_value = head < num_heads, head >= num_heads + num_kv_heads
    if HAS_NORMS:
        squares = tl.sum(low * low + high * high, axis=1)[:, None]
        scale = tl.where(is_value, 1.0, 1.0 / tl.sqrt(squares / (2 * half) + eps))
        low *= scale * _norm(q_norm_ptr, k_norm_ptr, column, is_query, is_value, is_column)
        high *= scale * _norm(q_norm_ptr, k_norm_ptr, column + half, is_query, is_value, is_column)
    angle = tl.load(positions_ptr + row).to(tl.int64) * half + column
    cos = tl.load(cos_ptr + angle, mask=is_column, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=is_column, other=0.0)
    turned_low, turned_high = rotate(low, high, cos, sin)
    low, high = tl.where(is_value, low, turned_low), tl.where(is_value, high, turned_high)
    tl.store(source_ptr, low.to(qkv_ptr.dtype.element_ty), mask=mask & is_query)
    tl.store(source_ptr + half, high.to(qkv_ptr.dtype.element_ty), mask=mask & is_query)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    _store(keys_ptr, key_scales_ptr, low, high, slot, head - num_heads, num_kv_heads, half,
           column, is_column, IS_FLOAT8)  # fmt: skip
    _store(values_ptr, value_scales_ptr, low, high, slot, head - num_heads - num_kv_heads,
           num_kv_heads, half, column, is_column, IS_FLOAT8)  # fmt: skip


@triton.jit
def _norm(q_norm_ptr, k_norm_ptr, column, is_query, is_value, is_column):
    """[HEADS, HALF_BLOCK]: the weight of each head's kind."""
    q = tl.load(q_norm_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    k = tl.load(k_norm_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    return tl.where(is_value, 1.0, tl.where(is_query, q, k))


@triton.jit
def _store(
    cache_ptr, scales_ptr, low, high, slot, kv_head, num_kv_heads, half, column, is_column,
    IS_FLOAT8: tl.constexpr,
):  # fmt: skip
    """Of the heads of the tile, those that are some of this part's."""
    place = slot * num_kv_heads + kv_head  # negative where the slot is
    is_here = (kv_head >= 0) & (kv_head < num_kv_heads) & (place >= 0)
    scale = tl.load(scales_ptr + kv_head, mask=is_here, other=1.0)  # [HEADS, 1]
    low, high = low / scale, high / scale
    target_ptr = cache_ptr + place * 2 * half + column
    mask = is_here & is_column
    if IS_FLOAT8:
        tl.store(target_ptr, encode_e4m3(low), mask=mask)
        tl.store(target_ptr + half, encode_e4m3(high), mask=mask)
    else:
        tl.store(target_ptr, low.to(cache_ptr.dtype.element_ty), mask=mask)
        tl.store(target_ptr + half, high.to(cache_ptr.dtype.element_ty), mask=mask)
