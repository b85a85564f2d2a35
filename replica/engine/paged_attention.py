"""Paged attention in plain PyTorch: gather the blocks of a sequence, then scaled dot product
attention.

Decoding rows of all sequences go through one call, padded to the longest with the null block,
whose contents are finite and masked; what an earlier owner left in a block's unused end may be
anything.  A longer segment (a chunk of prefill) goes alone, over
exactly its context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from replica.engine.batch import FlatBatch, Segment
from replica.engine.block_manager import NULL_BLOCK
from replica.model.config import LlamaConfig


class KvCache:
    """Zeroed at birth: padding reads the null block, and 0 * NaN would be NaN."""

    def __init__(self, config: LlamaConfig, num_blocks: int, block_size: int) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.keys = [_lazy_zeros(shape) for _ in range(config.num_layers)]
        self.values = [_lazy_zeros(shape) for _ in range(config.num_layers)]

    def block_bytes(self) -> list[npt.NDArray[np.uint8]]:
        """Each layer's keys and values, [num_blocks, bytes]: views, to move blocks by."""
        parts = [part.flatten(1).numpy() for part in (*self.keys, *self.values)]
        return [part.view(np.uint8) for part in parts]


def _lazy_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Pages the kernel hands out zeroed on first use:

    torch.zeros would write, and so own, all of them.
    """
    return torch.from_numpy(np.zeros(shape, np.float32))


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    rows: torch.Tensor  # [num_seqs]
    blocks: torch.Tensor  # [num_seqs * max_blocks] each table padded with the null block
    mask: torch.Tensor  # [num_seqs, 1, 1, max_blocks * block_size] True: attend
    tails: torch.Tensor  # indices into [num_seqs * max_blocks * block_size]: blocks' unused ends


@dataclass(frozen=True, slots=True)
class _PrefillSegment:
    rows: slice
    blocks: torch.Tensor  # [num_blocks]
    context_length: int
    mask: torch.Tensor | None  # [num_tokens, context_length] True: attend; None: plainly causal


@dataclass(frozen=True, slots=True)
class _Plan:
    """A step's work for layers of one window."""

    decodes: _DecodeGroup | None
    prefills: Sequence[_PrefillSegment]


class PagedAttention:
    """One step's attention: built per batch, used by every layer."""

    def __init__(
        self,
        cache: KvCache,
        batch: FlatBatch,
        block_size: int,
        windows: Sequence[int | None] = (),
    ) -> None:
        """windows: of each layer; none: all layers see all positions."""
        self._cache = cache
        self._windows = windows
        self._slots = torch.tensor(batch.slots, dtype=torch.int64)
        self._plans = {w: _plan(batch, block_size, w) for w in {*windows} or {None}}

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See ``replica.model.llama.Attention``."""
        plan = self._plans[self._windows[layer] if self._windows else None]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, k)
        values.flatten(0, 1).index_copy_(0, self._slots, v)
        output = torch.empty(q.shape)
        if plan.decodes is not None:
            output[plan.decodes.rows] = _attend_decodes(plan.decodes, q, keys, values)
        for segment in plan.prefills:
            output[segment.rows] = _attend_prefill(segment, q[segment.rows], keys, values)
        return output.flatten(1)


def _plan(batch: FlatBatch, block_size: int, window: int | None) -> _Plan:
    decodes = [s for s in batch.segments if s.num_tokens == 1]
    return _Plan(
        decodes=_decode_group(decodes, block_size, window) if decodes else None,
        prefills=[_prefill_segment(s, window) for s in batch.segments if s.num_tokens > 1],
    )


def _decode_group(segments: Sequence[Segment], block_size: int, window: int | None) -> _DecodeGroup:
    width = max(len(s.block_table) for s in segments)
    padded = [[*s.block_table, *[NULL_BLOCK] * (width - len(s.block_table))] for s in segments]
    lengths = torch.tensor([s.context_length for s in segments])
    mask = _is_seen(lengths - 1, width * block_size, window)
    return _DecodeGroup(
        rows=torch.tensor([s.first_row for s in segments]),
        blocks=torch.tensor(padded).flatten(),
        mask=mask[:, None, None, :],
        tails=torch.tensor(_tails(segments, width, block_size), dtype=torch.int64),
    )


def _is_seen(positions: torch.Tensor, num_keys: int, window: int | None) -> torch.Tensor:
    """[len(positions), num_keys]: which keys a row at each position sees."""
    distances = positions[:, None] - torch.arange(num_keys)[None, :]
    is_seen = distances >= 0
    return is_seen if window is None else is_seen & (distances < window)


def _tails(segments: Sequence[Segment], width: int, block_size: int) -> list[int]:
    return [
        (index * width + len(segment.block_table)) * block_size - offset
        for index, segment in enumerate(segments)
        for offset in range(1, 1 + len(segment.block_table) * block_size - segment.context_length)
    ]


def _attend_decodes(
    group: _DecodeGroup, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """The query heads of one KV head stand as that head's queries: K and V are never expanded."""
    num_seqs, (_, _, num_kv_heads, head_dim) = len(group.rows), keys.shape
    length = group.mask.shape[-1]
    queries = q[group.rows].view(num_seqs, num_kv_heads, -1, head_dim)
    context = (num_seqs, length, num_kv_heads, head_dim)
    k = _gather(keys, group).view(context).transpose(1, 2)
    v = _gather(values, group).view(context).transpose(1, 2)
    output = F.scaled_dot_product_attention(queries, k, v, attn_mask=group.mask)
    return output.reshape(num_seqs, -1, head_dim)


def _gather(cache: torch.Tensor, group: _DecodeGroup) -> torch.Tensor:
    """A copy, zero where nothing was written yet: a mask hides numbers, but no NaN."""
    return cache.index_select(0, group.blocks).flatten(0, 1).index_fill_(0, group.tails, 0.0)


def _prefill_segment(segment: Segment, window: int | None) -> _PrefillSegment:
    length = segment.context_length
    mask = None
    if segment.start > 0 or window is not None:
        mask = _is_seen(torch.arange(segment.start, length), length, window)
    return _PrefillSegment(
        rows=slice(segment.first_row, segment.first_row + segment.num_tokens),
        blocks=torch.tensor(segment.block_table, dtype=torch.int64),
        context_length=length,
        mask=mask,
    )


def _attend_prefill(
    segment: _PrefillSegment, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """q: [num_tokens, heads, head_dim]; keys, values:

    [num_blocks, block_size, kv_heads, head_dim].
    """
    k = keys.index_select(0, segment.blocks).flatten(0, 1)[: segment.context_length]
    v = values.index_select(0, segment.blocks).flatten(0, 1)[: segment.context_length]
    output = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=segment.mask,
        is_causal=segment.mask is None,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)
