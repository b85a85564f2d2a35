"""The definition, in plain PyTorch."""

from typing import Final

import torch

LARGEST: Final = 448.0


def e4m3_reference(x: torch.Tensor) -> torch.Tensor:
    """The nearest float8_e4m3fn, ties to even; what is too large becomes 448.

    Source: OCP 8-bit Floating Point Specification 1.0.
    """
    return x.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
