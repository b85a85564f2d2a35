"""Matrices of a model on a device: dense, 4-bit, or float8, each applied the fastest way known."""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere


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
