"""The definition, in plain PyTorch: gather one sequence's context, then softmax attention."""

from collections.abc import Sequence

import torch

from kernels.paged_attention.formats import ALL_POSITIONS, AttentionSpecialization, KvFormat


def paged_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_table: Sequence[int],
    start: int,
    window: int = ALL_POSITIONS,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(head_dim)) v over each query's own and all earlier positions.

    window: of them, only the last so many.

    q:      [num_tokens, heads, head_dim] float32: positions from ``start`` on
    keys:   [num_blocks, kv_heads, head_dim, block_size]
    values: [num_blocks, kv_heads, block_size, head_dim]
    return: [num_tokens, heads, head_dim] float32

    Source: Vaswani et al. 2017; Kwon et al. 2023, "PagedAttention".
    """
    num_tokens, num_heads, head_dim = q.shape
    table = torch.tensor(block_table)
    end = start + num_tokens
    k = keys[table].permute(1, 0, 3, 2).flatten(1, 2)[:, :end].float()  # [kv_heads, end, head_dim]
    v = values[table].transpose(0, 1).flatten(1, 2)[:, :end].float()
    group_size = num_heads // len(k)
    k, v = k.repeat_interleave(group_size, 0), v.repeat_interleave(group_size, 0)
    scores = torch.einsum("thd,hkd->htk", q, k) / head_dim**0.5
    positions = torch.arange(start, end)
    distances = positions[:, None] - torch.arange(end)[None, :]
    is_hidden = (distances < 0) | (distances >= window)
    weights = torch.softmax(scores.masked_fill(is_hidden, float("-inf")), dim=-1)
    return torch.einsum("htk,hkd->thd", weights, v)


def dense_keys(stored: torch.Tensor, spec: AttentionSpecialization) -> torch.Tensor:
    """[num_blocks, kv_heads, head_dim, block_size] float32, whatever the cache's format.

    stored: [num_blocks, kv_heads, block_head_bytes] uint8
    """
    elements, scales = _elements(stored, spec)
    shape = (*elements.shape[:2], spec.head_dim, spec.block_size)
    return elements.view(shape) * scales[..., None, :]


def dense_values(stored: torch.Tensor, spec: AttentionSpecialization) -> torch.Tensor:
    """[num_blocks, kv_heads, block_size, head_dim] float32, likewise."""
    elements, scales = _elements(stored, spec)
    shape = (*elements.shape[:2], spec.block_size, spec.head_dim)
    return elements.view(shape) * scales[..., None]


def _elements(
    stored: torch.Tensor, spec: AttentionSpecialization
) -> tuple[torch.Tensor, torch.Tensor]:
    """(elements, or their codes; scales [num_blocks, kv_heads, block_size])."""
    dtype = _DTYPES[spec.kv_format]
    elements = stored[..., : spec.scales_offset_bytes].contiguous().view(dtype).float()
    if spec.kv_format is not KvFormat.INT8:
        return elements, torch.ones(1, 1, spec.block_size)
    return elements, stored[..., spec.scales_offset_bytes :].contiguous().view(torch.float32)


_DTYPES = {
    KvFormat.FLOAT32: torch.float32,
    KvFormat.BFLOAT16: torch.bfloat16,
    KvFormat.INT8: torch.int8,
}
