"""Rotation and KV write on their own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.paged_attention.formats import AttentionSpecialization
from kernels.rotary import cpu
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry


def rotary(
    spec: AttentionSpecialization,
    qkv: torch.Tensor,
    places: tuple[torch.Tensor, torch.Tensor],
    tables: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
    team: ThreadTeam,
) -> None:
    """Turn qkv's queries in place; write its keys, turned, and its values to the cache.

    qkv:    [num_tokens, (heads + 2 * kv_heads) * head_dim] float32, contiguous
    places: positions and slots (block * block_size + offset), each [num_tokens] int64
    tables: cos and sin, each [max_positions, head_dim / 2] float32
    cache:  keys and values of one layer, see ``kernels.paged_attention.formats``

    See ``reference.rotary_reference`` for the rotation.
    """
    num_kv_heads = cache[0].shape[1]
    width = (spec.group_size + 2) * num_kv_heads * spec.head_dim
    if qkv.shape[1] != width or not qkv.is_contiguous():
        raise ValueError(f"expected contiguous rows of {width}, got {tuple(qkv.shape)}")
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    arguments = (
        spec,
        qkv.data_ptr(),
        len(qkv),
        num_kv_heads,
        *(place.numpy() for place in places),
        *(table.data_ptr() for table in tables),
        *(part.data_ptr() for part in cache),
        stage.ctypes.data,
    )
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)


@compiled_entry
def _shared(
    _thread: int,
    num_threads: int,
    spec: Any,
    qkv: int,
    num_rows: int,
    num_kv_heads: int,
    positions: Any,
    slots: Any,
    cos: int,
    sin: int,
    keys: int,
    values: int,
    stage: int,
) -> None:
    cpu.rotary(
        spec, num_threads, qkv, num_rows, num_kv_heads, positions, slots, cos, sin, keys, values,
        stage,
    )  # fmt: skip
