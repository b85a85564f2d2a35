"""Paged attention over tensors of any device: Triton where it runs, else the definition.

The cache's parts are [num_blocks, block_size, kv_heads, head_dim] here; see ``formats`` for the
layout that the CPU's kernel wants.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import torch
import triton

from kernels.devices import dot_dtype, num_multiprocessors, runs_triton
from kernels.paged_attention.kernel import merge_splits_kernel, paged_attention_kernel
from kernels.paged_attention.rows import PLAIN, AttentionOptions, AttentionRows, Pair
from kernels.paged_attention.rows_reference import rows_reference

_KEYS: Final = 32  # per tile: whole splits of it
_DECODE_ROWS: Final = 16  # the least that tensor cores take
_PREFILL_ROWS: Final = 64
_PROGRAMS_PER_PROCESSOR: Final = 4  # enough to hide each other's loads
_MAX_SPLITS: Final = 64


@dataclass(frozen=True, slots=True)
class _Launch:
    grid: tuple[int, int, int]
    rows: int
    is_split: bool
    output: torch.Tensor = field(repr=False)
    sums: torch.Tensor = field(repr=False)


def paged_attention(
    q: torch.Tensor,
    cache: Pair,
    scales: Pair,
    rows: AttentionRows,
    options: AttentionOptions = PLAIN,
) -> torch.Tensor:
    """softmax(q k^T * scale) v over each query's own and all earlier positions of its sequence.

    q:      [num_tokens, heads, head_dim], heads contiguous
    cache:  keys and values, each [num_blocks, block_size, kv_heads, head_dim], float8 perhaps
    scales: of keys and of values, each [kv_heads] float32: what a stored 1 means
    return: [num_tokens, heads, head_dim]

    See ``rows_reference.rows_reference``.
    """
    num_tokens, num_heads, head_dim = q.shape
    keys, values = cache
    _check(q, cache, options)
    if not runs_triton(q):
        return rows_reference(q, cache, scales, rows, options)
    output = q.new_empty(num_tokens, num_heads, head_dim)
    if not num_tokens:
        return output
    launch = _plan(output, keys.shape[2], rows, options)
    paged_attention_kernel[launch.grid](
        q, keys, values, *scales, rows.block_tables, rows.query_starts, rows.context_lengths,
        launch.output, launch.sums, q.stride(0), rows.num_seqs, rows.block_tables.shape[1],
        keys.shape[1], *_numbers(options, head_dim),
        GROUP=num_heads // keys.shape[2], HEAD_DIM=head_dim,
        HEAD_BLOCK=triton.next_power_of_2(head_dim), ROWS=launch.rows, KEYS=_KEYS,
        HAS_SOFTCAP=options.softcap is not None, HAS_WINDOW=options.window is not None,
        IS_SPLIT=launch.is_split, DOT=dot_dtype(q.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
    if launch.is_split:
        merge_splits_kernel[(num_tokens * num_heads,)](
            launch.output, launch.sums, output, launch.grid[2], HEAD_DIM=head_dim,
            HEAD_BLOCK=triton.next_power_of_2(head_dim), num_warps=1,
        )  # fmt: skip
    return output


def _plan(
    output: torch.Tensor, num_kv_heads: int, rows: AttentionRows, options: AttentionOptions
) -> _Launch:
    """From bounds alone, so that nobody waits for the device."""
    num_tokens, num_heads, head_dim = output.shape
    group = num_heads // num_kv_heads
    is_small = rows.max_query_tokens * group <= _DECODE_ROWS and options.split_keys is None
    tile_rows = max(_DECODE_ROWS if is_small else _PREFILL_ROWS, triton.next_power_of_2(group))
    num_tiles = num_tokens // (tile_rows // group) + rows.num_seqs
    if options.split_keys is not None:
        num_splits = max(1, triton.cdiv(rows.max_context, options.split_keys))
    elif is_small:
        num_splits = _splits_that_fill(output.device, num_tiles * num_kv_heads, rows.max_context)
    else:
        num_splits = 1
    grid = (num_tiles, num_kv_heads, num_splits)
    if num_splits == 1:
        return _Launch(grid, tile_rows, is_split=False, output=output, sums=output)
    shape = (num_tokens, num_heads, num_splits)
    parts = output.new_empty(*shape, head_dim, dtype=torch.float32)
    sums = output.new_empty(shape, dtype=torch.float32)
    return _Launch(grid, tile_rows, is_split=True, output=parts, sums=sums)


def _splits_that_fill(device: torch.device, num_programs: int, max_context: int) -> int:
    wanted = num_multiprocessors(device) * _PROGRAMS_PER_PROCESSOR // max(1, num_programs)
    return max(1, min(wanted, _MAX_SPLITS, -(-max_context // (4 * _KEYS))))


def _numbers(options: AttentionOptions, head_dim: int) -> tuple[float, float, int, int]:
    """Scale, cap, window and keys of a split; the kernel is told beside which of them count."""
    return (
        1.0 / math.sqrt(head_dim) if options.scale is None else options.scale,
        1.0 if options.softcap is None else options.softcap,
        0 if options.window is None else options.window,
        0 if options.split_keys is None else options.split_keys,
    )


def _check(q: torch.Tensor, cache: Pair, options: AttentionOptions) -> None:
    keys, values = cache
    num_heads, head_dim = q.shape[1:]
    if q.stride()[1:] != (head_dim, 1) or keys.shape[3] != head_dim:
        raise ValueError(f"expected contiguous heads of {keys.shape[3]}, got {tuple(q.shape)}")
    if keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError(f"expected like, contiguous parts, got {keys.shape} and {values.shape}")
    if num_heads % keys.shape[2]:
        raise ValueError(f"{num_heads} heads do not divide over {keys.shape[2]} KV heads")
    if options.split_keys is not None and (options.split_keys < 1 or options.split_keys % _KEYS):
        raise ValueError(f"expected splits of {_KEYS}s, got {options.split_keys}")
