"""Paged attention on its own, for callers that are not a compiled step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernels.paged_attention import cpu
from kernels.paged_attention.formats import AttentionSpecialization
from kernels.paged_attention.plan import Segment, pad_block_tables, plan_pieces
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry


def paged_attention(
    spec: AttentionSpecialization,
    q: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    segments: Sequence[Segment],
    team: ThreadTeam,
) -> torch.Tensor:
    """See ``reference.paged_attention_reference`` for the definition and the shapes.

    q: [num_tokens, heads, head_dim] of all segments.  A token's output has the same bits in any
    batch and any chunking.
    """
    keys, values = cache
    q = q.contiguous()
    output = torch.empty_like(q)
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    own_bytes = cpu.scratch_bytes(spec)
    scratch = np.empty(team.num_threads * own_bytes, np.uint8)
    arguments = (
        spec,
        q.data_ptr(),
        q.stride(0) * q.element_size(),
        output.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        keys.shape[1],
        plan_pieces(spec, segments),
        pad_block_tables(segments),
        stage.ctypes.data,
        scratch.ctypes.data,
        own_bytes,
    )
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return output


@compiled_entry
def _shared(
    thread: int,
    _num_threads: int,
    spec: Any,
    q: int,
    q_stride: int,
    output: int,
    keys: int,
    values: int,
    num_kv_heads: int,
    pieces: Any,
    block_tables: Any,
    stage: int,
    scratch: int,
    scratch_bytes: int,
) -> None:
    cpu.paged_attention(
        spec, q, q_stride, output, keys, values, num_kv_heads, pieces, block_tables, stage,
        scratch + thread * scratch_bytes,
    )  # fmt: skip
