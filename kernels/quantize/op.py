"""Quantizing on its own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.quantize import cpu
from kernels.quantize.formats import (
    GROUP_BYTES,
    GROUP_SIZE,
    SCALE_OFFSET_BYTES,
    SUM_OFFSET_BYTES,
)
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level
from kernels.vector_ir.specialization import Specialization


def quantize(
    x: torch.Tensor, team: ThreadTeam, level: FeatureLevel | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``reference.quantize_reference``; the last are the codes' sums, as the scales lie."""
    packed = quantize_packed(x, team, level)
    return (
        packed[..., :GROUP_SIZE].contiguous().view(torch.int8),
        _floats(packed, SCALE_OFFSET_BYTES),
        _floats(packed, SUM_OFFSET_BYTES),
    )


def quantize_packed(
    x: torch.Tensor, team: ThreadTeam, level: FeatureLevel | None = None
) -> torch.Tensor:
    """uint8 [num_tokens, num_groups, GROUP_BYTES], see ``formats``."""
    if x.dtype is not torch.float32 or x.ndim != 2 or x.shape[1] % GROUP_SIZE:
        raise ValueError(f"expected float32 rows of {GROUP_SIZE}s, got {x.dtype} {tuple(x.shape)}")
    x = x.contiguous()
    num_groups = x.shape[1] // GROUP_SIZE
    packed = torch.empty(len(x), num_groups, GROUP_BYTES, dtype=torch.uint8)
    spec = Specialization(detect_level() if level is None else level)
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    arguments = (spec, x.data_ptr(), packed.data_ptr(), len(x), num_groups, stage.ctypes.data)
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return packed


def _floats(packed: torch.Tensor, offset: int) -> torch.Tensor:
    return packed[..., offset : offset + 4].contiguous().view(torch.float32)[..., 0]


@compiled_entry
def _shared(
    _thread: int,
    num_threads: int,
    spec: Any,
    x: int,
    codes: int,
    num_rows: int,
    num_groups: int,
    stage: int,
) -> None:
    cpu.quantize(spec, num_threads, x, codes, num_rows, num_groups, stage)
