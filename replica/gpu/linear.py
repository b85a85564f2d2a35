"""Matrices of a model on a device: dense, rounded to float8, or shipped in 4 bits."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from kernels.gemm_fp8.op import gemm_fp8, quantize_rows
from kernels.gemm_fp8.reference import Float8Weight
from kernels.gemm_w4a16.formats import Int4Weight
from kernels.gemm_w4a16.op import dequantize, gemm_w4a16


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


class Int4Linear:
    """A Linear: codes become numbers in registers, fast where reading them is most of the work."""

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    @property
    def size_bytes(self) -> int:
        return self._weight.size_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = gemm_w4a16(x, self._weight)
        return y if self._bias is None else y + self._bias


class DequantizedLinear:
    """A Linear of the same codes: dense for as long as torch's own product takes."""

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    @property
    def size_bytes(self) -> int:
        """None of its own."""
        return 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, dequantize(self._weight), self._bias)
