"""The arg-max on its own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.argmax import cpu
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level
from kernels.vector_ir.specialization import Specialization


def argmax(
    logits: torch.Tensor, team: ThreadTeam, level: FeatureLevel | None = None
) -> torch.Tensor:
    """See ``reference.argmax_reference`` for the definition and the shapes."""
    spec = Specialization(detect_level() if level is None else level)
    if logits.shape[1] == 0:
        raise ValueError("expected at least one column")
    logits = logits.contiguous()
    indices = torch.empty(len(logits), dtype=torch.int64)
    width = logits.shape[1]
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    arguments = (
        spec,
        logits.data_ptr(),
        width,
        width,
        len(logits),
        indices.data_ptr(),
        stage.ctypes.data,
    )
    compile_for(_shared, 0, 0, *arguments)
    team.run(_shared, *arguments)
    return indices


@compiled_entry
def _shared(
    _thread: int,
    num_threads: int,
    spec: Any,
    logits: int,
    row_stride: int,
    vocab_size: int,
    num_rows: int,
    indices: int,
    stage: int,
) -> None:
    cpu.argmax(spec, num_threads, logits, row_stride, vocab_size, num_rows, indices, stage)
