"""The linear on its own, for callers that are not a compiled step."""

from typing import Any

import numpy as np
import torch

from kernels.linear import cpu
from kernels.linear.formats import (
    GROUP_SIZE,
    TILE_COLUMNS,
    ActivationFormat,
    LinearSpecialization,
)
from kernels.linear.packing import PackedWeight
from kernels.quantize.op import quantize_packed
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    team: ThreadTeam,
    level: FeatureLevel | None = None,
    activation_format: ActivationFormat = ActivationFormat.FLOAT32,
) -> torch.Tensor:
    """See ``reference.linear_reference`` for the definition and the shapes.

    Rows are computed alike, bit for bit, whatever their number.  level: None for the best.
    activation_format: what x is turned into before it is multiplied.
    """
    if x.dtype is not torch.float32 or x.ndim != 2 or x.shape[1] != weight.in_features:
        raise ValueError(
            f"expected float32 [num_tokens, {weight.in_features}], got {x.dtype} {tuple(x.shape)}"
        )
    x = x.contiguous()
    padded = torch.empty(len(x), weight.padded_out_features)
    scratch = np.empty(team.num_threads * cpu.SCRATCH_BYTES, np.uint8)
    stage = np.zeros(STAGE_BYTES // 8, np.int64)
    level = detect_level() if level is None else level
    spec = LinearSpecialization(level, weight.weight_format, activation_format)
    if activation_format is ActivationFormat.INT8:
        x = quantize_packed(x, team, level)
    arguments = (
        spec,
        weight.address,
        weight.padded_out_features // TILE_COLUMNS,
        weight.in_features // GROUP_SIZE,
        x.data_ptr(),
        len(x),
        padded.data_ptr(),
        padded.stride(0) * padded.element_size(),
        stage.ctypes.data,
        scratch.ctypes.data,
    )
    compile_for(_shared_linear, 0, 0, *arguments)
    team.run(_shared_linear, *arguments)
    return padded[:, : weight.out_features]


@compiled_entry
def _shared_linear(
    thread: int,
    num_threads: int,
    spec: Any,  # a LinearSpecialization
    weight: int,
    num_tiles: int,
    num_groups: int,
    x: int,
    num_rows: int,
    y: int,
    y_stride: int,
    stage: int,
    scratch: int,
) -> None:
    own_scratch = scratch + thread * cpu.SCRATCH_BYTES
    cpu.linear(
        spec,
        num_threads,
        weight,
        num_tiles,
        num_groups,
        x,
        num_rows,
        y,
        y_stride,
        stage,
        own_scratch,
    )
