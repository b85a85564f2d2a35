"""The definition, in plain PyTorch."""

from dataclasses import dataclass

import torch

from kernels.float8.reference import e4m3_reference
from kernels.rms_norm.reference import add_rms_norm_reference
from kernels.rotary.reference import rotary_reference


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Qwen3: each head of q and of k is normed before it is turned."""

    q: torch.Tensor  # [head_dim]
    k: torch.Tensor  # [head_dim]
    eps: float


def kv_write_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None = None,
) -> None:
    """Turns the queries in place; keys, turned, and values go to their slots, over their scales.

    qkv:       [num_tokens, (heads + 2 * kv_heads) * head_dim]: q, then k, then v
    positions: [num_tokens]; they choose rows of the tables, cos and sin [max_positions, half]
    slots:     [num_tokens] block * block_size + offset; a negative one is written nowhere
    cache:     keys and values, each [num_blocks, block_size, kv_heads, head_dim]
    scales:    of keys and of values, each [kv_heads]: what a stored 1 means
    """
    num_kv_heads, head_dim = cache[0].shape[2:]
    heads = qkv.float().view(len(qkv), -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    q, k, v = heads.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
    if norms is not None:
        zero = torch.zeros((), device=qkv.device)
        q = add_rms_norm_reference(q, zero, norms.q.float(), norms.eps)[1]
        k = add_rms_norm_reference(k, zero, norms.k.float(), norms.eps)[1]
    cos, sin = (table[positions.long()] for table in tables)
    q, k = rotary_reference(q, cos, sin), rotary_reference(k, cos, sin)
    qkv[:, : q[0].numel()] = q.flatten(1).to(qkv.dtype)
    is_written = slots >= 0
    for part, rows, scale in zip(cache, (k, v), scales, strict=True):
        stored = rows[is_written] / scale[:, None]
        is_float8 = part.dtype is torch.float8_e4m3fn
        stored = e4m3_reference(stored) if is_float8 else stored.to(part.dtype)
        # Bytes, because torch indexes no float8.
        part.flatten(0, 1).view(torch.uint8)[slots[is_written].long()] = stored.view(torch.uint8)
