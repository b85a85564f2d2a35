"""The rotation alone, over tensors of any device; ``kernels.kv_write`` turns and writes at once."""

import torch
import triton

from kernels.devices import runs_triton
from kernels.rotary.kernel import rotary_kernel
from kernels.rotary.reference import rotary_reference

_HEADS = 8  # per program


def rotary_(
    x: torch.Tensor, positions: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Turns each head of x in place by the angles of its token's position.

    x:         [num_tokens, heads, head_dim], any float dtype, heads contiguous
    positions: [num_tokens] int
    tables:    cos and sin, each [max_positions, head_dim / 2] float32

    See ``reference.rotary_reference``.
    """
    num_tokens, num_heads, head_dim = x.shape
    cos, sin = tables
    if head_dim % 2 or cos.shape[1] * 2 != head_dim or x.stride()[1:] != (head_dim, 1):
        raise ValueError(f"expected contiguous heads of {2 * cos.shape[1]}, got {tuple(x.shape)}")
    if not runs_triton(x):
        x.copy_(rotary_reference(x.float(), cos[positions], sin[positions]))
    elif x.numel():
        grid = (num_tokens, triton.cdiv(num_heads, _HEADS))
        rotary_kernel[grid](
            x, positions, cos, sin, x.stride(0), num_heads, head_dim // 2,
            HEADS=_HEADS, HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        )  # fmt: skip
