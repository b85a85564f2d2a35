"""The gate on its own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.silu_mul import cpu
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level
from kernels.vector_ir.specialization import Specialization


def silu_mul(
    gate_up: torch.Tensor, team: ThreadTeam, level: FeatureLevel | None = None
) -> torch.Tensor:
    """See ``reference.silu_mul_reference`` for the definition and the shapes."""
    num_rows, width = gate_up.shape
    if width % (2 * cpu.COLUMN_MULTIPLE):
        raise ValueError(f"expected two halves of {cpu.COLUMN_MULTIPLE}s, got {width} columns")
    gate_up = gate_up.contiguous()
    y = torch.empty(num_rows, width // 2)
    spec = Specialization(detect_level() if level is None else level)
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    arguments = (spec, gate_up.data_ptr(), y.data_ptr(), num_rows, width // 2, stage.ctypes.data)
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return y


@compiled_entry
def _shared(
    _thread: int,
    num_threads: int,
    spec: Any,
    gate_up: int,
    y: int,
    num_rows: int,
    size: int,
    stage: int,
) -> None:
    cpu.silu_mul(spec, num_threads, gate_up, 2 * size, y, 0, num_rows, size, stage)
