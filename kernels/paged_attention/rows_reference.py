"""The definition for tensors of any device, in plain PyTorch: one sequence after the other."""

import math

import torch

from kernels.paged_attention.rows import AttentionOptions, AttentionRows, Pair


def rows_reference(
    q: torch.Tensor,
    cache: Pair,
    scales: Pair,
    rows: AttentionRows,
    options: AttentionOptions,
) -> torch.Tensor:
    """See ``triton_op.paged_attention`` for the shapes; computed in float32.

    Source: Vaswani et al. 2017; Kwon et al. 2023, "PagedAttention"; the cap: Gemma 2 (2024).
    """
    output = torch.empty_like(q, memory_format=torch.contiguous_format)
    starts = rows.query_starts.tolist()
    for sequence, context in enumerate(rows.context_lengths.tolist()):
        begin, end = starts[sequence], starts[sequence + 1]
        if begin < end:
            table = rows.block_tables[sequence]
            k, v = (_dense(*part, table, context) for part in zip(cache, scales, strict=True))
            output[begin:end] = _attend(q[begin:end].float(), k, v, options).to(q.dtype)
    return output


def merge_reference(parts: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
    """Attention over all keys, from attention over disjoint sets of them.

    parts:    [num_sets, ..., head_dim] float32
    log_sums: [num_sets, ...] float32: of each set's sum of powers, to base 2
    """
    weights = torch.softmax(log_sums * math.log(2.0), dim=0)
    return (weights[..., None] * parts).sum(0)


def _dense(
    part: torch.Tensor, scale: torch.Tensor, table: torch.Tensor, context: int
) -> torch.Tensor:
    """[kv_heads, context, head_dim] float32."""
    block_size = part.shape[1]
    blocks = table[: -(-context // block_size)].long()
    stored = part.view(torch.uint8)[blocks].view(part.dtype).flatten(0, 1)[:context]
    return (stored.float() * scale[:, None]).transpose(0, 1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    (num_tokens, num_heads, head_dim), context = q.shape, k.shape[1]
    k, v = (x.repeat_interleave(num_heads // len(k), 0) for x in (k, v))
    scale = 1.0 / math.sqrt(head_dim) if options.scale is None else options.scale
    scores = torch.einsum("thd,hkd->htk", q, k) * scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    positions = torch.arange(context - num_tokens, context, device=q.device)
    distances = positions[:, None] - torch.arange(context, device=q.device)[None, :]
    is_hidden = distances < 0
    if options.window is not None:
        is_hidden |= distances >= options.window
    weights = torch.softmax(scores.masked_fill(is_hidden, float("-inf")), dim=-1)
    return torch.einsum("htk,hkd->thd", weights, v)
