"""The norm over tensors of any device: Triton where it runs, else the definition."""

import torch
import triton

from kernels.devices import runs_triton
from kernels.rms_norm.kernel import add_rms_norm_kernel
from kernels.rms_norm.reference import add_rms_norm_reference

MAX_HIDDEN = 1 << 15  # a row must fit in the registers of one program


def add_rms_norm_(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds delta, if there is one, to residual in place; returns the sum's norm.

    residual, delta: [num_tokens, hidden], any float dtype, rows contiguous
    weight:          [hidden]

    See ``reference.add_rms_norm_reference``.
    """
    num_tokens, hidden = residual.shape
    if weight.shape != (hidden,) or (delta is not None and delta.shape != residual.shape):
        raise ValueError(f"expected [tokens, hidden] twice and [hidden], got {residual.shape}")
    if residual.stride(1) != 1 or (delta is not None and delta.stride(1) != 1):
        raise ValueError("expected contiguous rows")
    if hidden > MAX_HIDDEN:
        raise ValueError(f"expected at most {MAX_HIDDEN} columns, got {hidden}")
    if not runs_triton(residual):
        return _by_definition(residual, delta, weight, eps)
    y = torch.empty_like(residual, memory_format=torch.contiguous_format)
    if num_tokens:
        summand = residual if delta is None else delta
        block = triton.next_power_of_2(hidden)
        add_rms_norm_kernel[(num_tokens,)](
            residual, summand, weight, y, residual.stride(0), summand.stride(0), y.stride(0),
            hidden, eps, HAS_DELTA=delta is not None, BLOCK=block,
            num_warps=max(1, min(16, block // 256)),
        )  # fmt: skip
    return y


def _by_definition(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    if delta is not None:
        residual += delta
    x = residual.float()
    _, y = add_rms_norm_reference(x, torch.zeros_like(x), weight.float(), eps)
    return y.to(residual.dtype)
