"""Paged attention on its own, for callers that are not a compiled step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernels.paged_attention import cpu
from kernels.paged_attention.formats import ALL_POSITIONS, AttentionSpecialization
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
    window: int = ALL_POSITIONS,
) -> torch.Tensor:
    """See ``reference.paged_attention_reference`` for the definition and the shapes.

    q: [num_tokens, heads, head_dim] of all segments.  A token's output has the same bits in any
    batch and any chunking.  window: needs a ``spec`` that has one.
    """
    if window < 1 or (window < ALL_POSITIONS and not spec.has_window):
        raise ValueError(f"window {window}: expected a positive one, and a spec that has one")
    keys, values = cache
    q = q.contiguous()
    output = torch.empty_like(q)
    stages = np.zeros(cpu.NUM_STAGES * STAGE_BYTES, np.uint8)
    own_bytes = cpu.scratch_bytes(spec)
    scratch = np.empty(team.num_threads * own_bytes, np.uint8)
    end = max((s.start + s.num_tokens for s in segments), default=0)
    spans = np.empty(cpu.spans_bytes(spec, team.num_threads, end), np.uint8)
    arguments = (
        spec,
        q.data_ptr(),
        q.stride(0) * q.element_size(),
        output.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        keys.shape[1],
        window,
        plan_pieces(spec, segments),
        pad_block_tables(segments),
        stages.ctypes.data,
        scratch.ctypes.data,
        own_bytes,
        spans.ctypes.data,
    )
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return output


@compiled_entry
def _shared(
    thread: int,
    num_threads: int,
    spec: Any,
    q: int,
    q_stride: int,
    output: int,
    keys: int,
    values: int,
    num_kv_heads: int,
    window: int,
    pieces: Any,
    block_tables: Any,
    stage: int,
    scratch: int,
    scratch_bytes: int,
    spans: int,
) -> None:
    cpu.paged_attention(
        spec, num_threads, q, q_stride, output, keys, values, num_kv_heads, window, pieces,
        block_tables, stage, scratch + thread * scratch_bytes, spans,
    )  # fmt: skip
