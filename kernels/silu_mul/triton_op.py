"""The gate over tensors of any device: Triton where it runs, else the definition."""

import torch
import triton

from kernels.devices import runs_triton
from kernels.silu_mul.kernel import silu_mul_kernel
from kernels.silu_mul.reference import silu_mul_reference

_BLOCK = 1024


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * size] of any float dtype -> [num_tokens, size].

    See ``reference.silu_mul_reference``.
    """
    num_tokens, width = gate_up.shape
    if width % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"expected rows of two contiguous halves, got {tuple(gate_up.shape)}")
    if not runs_triton(gate_up):
        return silu_mul_reference(gate_up.float()).to(gate_up.dtype)
    size = width // 2
    y = gate_up.new_empty(num_tokens, size)
    if y.numel():
        grid = (num_tokens, triton.cdiv(size, _BLOCK))
        silu_mul_kernel[grid](gate_up, y, gate_up.stride(0), size, BLOCK=_BLOCK)
    return y
