"""Matrices of a model on a device: dense, or rounded to float8."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from kernels.gemm_fp8.op import gemm_fp8, quantize_rows
from kernels.gemm_fp8.reference import Float8Weight


class Linear(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_rows, in] -> [num_rows, out], of one dtype."""
        ...


class DenseLinear:
    """A Linear: torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: [out, in]; bias: [out]."""
        self._weight = weight
        self._bias = bias

    @property
    def size_bytes(self) -> int:
        return self._weight.numel() * self._weight.element_size()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class Float8Linear:
    """A Linear: rows are rounded to float8, each by its own scale, or in blocks as the weight."""

    def __init__(self, weight: Float8Weight) -> None:
        self._weight = weight

    @property
    def size_bytes(self) -> int:
        scales = self._weight.scales
        return self._weight.codes.numel() + scales.numel() * scales.element_size()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return gemm_fp8(quantize_rows(x, in_blocks=self._weight.has_blocks), self._weight, x.dtype)
