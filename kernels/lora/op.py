"""Adapters as two grouped products: rows sorted by adapter, those without one in no tile."""

import torch

from kernels.grouped_gemm.op import GroupedRows, add_grouped_gemm_, grouped_gemm
from kernels.lora.reference import Adapters


def add_lora_(y: torch.Tensor, x: torch.Tensor, adapters: Adapters, rows: GroupedRows) -> None:
    """In place; rows without an adapter keep every bit.  See ``reference.lora_reference``.

    rows: ``group_rows`` of the adapters' ids, once for all layers of a step
    """
    inner = grouped_gemm(x, adapters.shrink, rows)
    add_grouped_gemm_(y, inner, adapters.expand, rows, adapters.scales)
