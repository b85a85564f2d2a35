"""Products with another matrix for each group of rows: nobody waits to learn how large they are."""

from dataclasses import dataclass
from typing import Final

import torch
import triton

from kernels.devices import dot_dtype, runs_triton
from kernels.grouped_gemm.kernel import grouped_gemm_kernel
from kernels.grouped_gemm.reference import grouped_gemm_reference

_ROWS: Final = 16  # of a tile: with many groups most have few
_COLUMNS: Final = 64
_INPUTS: Final = 64


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows by their groups; those of none come last and are in no tile."""

    groups: torch.Tensor  # [num_rows] int64; negative: none
    order: torch.Tensor  # [num_rows] int64
    starts: torch.Tensor  # [num_groups + 1] int32


def group_rows(groups: torch.Tensor, num_groups: int) -> GroupedRows:
    """groups: [num_rows] int64 below num_groups; negative: none."""
    keys = torch.where(groups < 0, num_groups, groups)
    counts = torch.zeros(num_groups + 1, dtype=torch.int64, device=groups.device)
    counts.scatter_add_(0, keys, torch.ones_like(keys))
    starts = torch.zeros(num_groups + 1, dtype=torch.int32, device=groups.device)
    starts[1:] = counts[:num_groups].cumsum(0)
    return GroupedRows(groups, torch.argsort(keys, stable=True), starts)


def grouped_gemm(
    x: torch.Tensor, weights: torch.Tensor, rows: GroupedRows, copies: int = 1
) -> torch.Tensor:
    """See ``reference.grouped_gemm_reference``; returns x's dtype.

    Rows of no group hold whatever there was.
    """
    y = x.new_empty(len(rows.groups), weights.shape[1])
    if not runs_triton(x):
        return grouped_gemm_reference(x, weights, rows.groups, copies).to(x.dtype)
    _launch(x, weights, rows, copies, y, None)
    return y


def add_grouped_gemm_(
    y: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    rows: GroupedRows,
    scales: torch.Tensor,
) -> None:
    """y[i] += scales[groups[i]] * weights[groups[i]] x[i]; other rows keep every bit.

    scales: [num_groups] float32
    """
    if runs_triton(x):
        _launch(x, weights, rows, 1, y, scales)
        return
    has_group = rows.groups >= 0
    delta = grouped_gemm_reference(x, weights, rows.groups, 1)[has_group]
    scaled = delta * scales[rows.groups[has_group]][:, None]
    y[has_group] = (y[has_group].float() + scaled).to(y.dtype)


def _launch(
    x: torch.Tensor,
    weights: torch.Tensor,
    rows: GroupedRows,
    copies: int,
    y: torch.Tensor,
    scales: torch.Tensor | None,
) -> None:
    num_groups, out_features, in_features = weights.shape
    num_rows = len(rows.order)
    if len(x) * copies != num_rows or x.shape[1] != in_features or not weights.is_contiguous():
        raise ValueError(f"{x.shape}, {copies} times, and {weights.shape} do not match")
    if x.stride(1) != 1 or y.stride(1) != 1:
        raise ValueError("expected contiguous rows")
    if num_rows == 0 or num_groups == 0:
        return
    num_tiles = num_rows // _ROWS + min(num_rows, num_groups)
    grouped_gemm_kernel[(num_tiles, triton.cdiv(out_features, _COLUMNS))](
        x, weights, rows.order, rows.starts, rows.starts if scales is None else scales, y,
        x.stride(0), y.stride(0), in_features, out_features, num_groups, COPIES=copies,
        IS_ADDED=scales is not None, GROUPS_BLOCK=triton.next_power_of_2(num_groups), ROWS=_ROWS,
        COLUMNS=_COLUMNS, INPUTS=_INPUTS, DOT=dot_dtype(x.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
