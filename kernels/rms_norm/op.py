"""The norm on its own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.rms_norm import cpu
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level
from kernels.vector_ir.specialization import Specialization


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    team: ThreadTeam,
    level: FeatureLevel | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.add_rms_norm_reference`` for the definition and the shapes."""
    if residual.shape != delta.shape or residual.shape[1:] != weight.shape:
        raise ValueError(f"shapes {residual.shape}, {delta.shape}, {weight.shape} do not match")
    if residual.shape[1] % cpu.ROW_MULTIPLE:
        raise ValueError(f"expected rows of {cpu.ROW_MULTIPLE}s, got {residual.shape[1]}")
    total, delta, weight = residual.clone(), delta.contiguous(), weight.contiguous()
    y = torch.empty_like(total)
    spec = Specialization(detect_level() if level is None else level)
    addresses = (total.data_ptr(), delta.data_ptr(), weight.data_ptr(), y.data_ptr())
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    arguments = (spec, *addresses, *total.shape, eps, stage.ctypes.data)
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return total, y


@compiled_entry
def _shared(
    _thread: int,
    num_threads: int,
    spec: Any,
    residual: int,
    delta: int,
    weight: int,
    y: int,
    num_rows: int,
    size: int,
    eps: float,
    stage: int,
) -> None:
    cpu.add_rms_norm(spec, num_threads, residual, delta, weight, y, 0, num_rows, size, eps, stage)
