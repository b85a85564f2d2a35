"""The only name the model imports: checks shapes, then launches."""

import torch
import triton

from kernels.devices import runs_triton
from kernels.kv_write.kernel import kv_write_kernel
from kernels.kv_write.reference import HeadNorms, kv_write_reference

_HEADS = 8  # per program


def kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None = None,
) -> None:
    """See ``reference.kv_write_reference`` for the definition and the shapes."""
    keys, values = cache
    num_kv_heads, head_dim = keys.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    _check(qkv, cache, tables, num_heads)
    if not runs_triton(qkv):
        kv_write_reference(qkv, positions, slots, tables, cache, scales, norms)
    elif len(qkv):
        is_float8 = keys.dtype is torch.float8_e4m3fn
        stored = (keys.view(torch.uint8), values.view(torch.uint8)) if is_float8 else cache
        weights = (qkv, qkv) if norms is None else (norms.q, norms.k)
        grid = (len(qkv), triton.cdiv(num_heads + 2 * num_kv_heads, _HEADS))
        kv_write_kernel[grid](
            qkv, positions, slots, *tables, *stored, *scales, *weights, qkv.stride(0),
            num_heads, num_kv_heads, head_dim // 2, 0.0 if norms is None else norms.eps,
            IS_FLOAT8=is_float8, HAS_NORMS=norms is not None, HEADS=_HEADS,
            HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        )  # fmt: skip


def _check(
    qkv: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    tables: tuple[torch.Tensor, torch.Tensor],
    num_heads: int,
) -> None:
    keys, values = cache
    head_dim = keys.shape[3]
    if num_heads < 1 or qkv.shape[1] % head_dim or qkv.stride(1) != 1:
        raise ValueError(f"expected contiguous rows of heads of {head_dim}, got {qkv.shape}")
    if keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError(f"expected like, contiguous parts, got {keys.shape} and {values.shape}")
    if any(table.shape[1] * 2 != head_dim for table in tables):
        raise ValueError(f"expected tables of {head_dim // 2} columns, got {tables[0].shape}")
