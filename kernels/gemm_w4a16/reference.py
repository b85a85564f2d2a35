"""The definition, in plain PyTorch."""

import torch

from kernels.gemm_w4a16.formats import Int4Weight


def dequantize_reference(weight: Int4Weight) -> torch.Tensor:
    """[out, in] float32.

    Source: Frantar et al. 2023, "GPTQ"; Lin et al. 2023, "AWQ".
    """
    shifts = 4 * torch.arange(8, device=weight.codes.device)
    codes = ((weight.codes[:, None] >> shifts[:, None]) & 15).flatten(0, 1)  # [in, out]
    zeros, scales = (
        part.float().repeat_interleave(weight.group_size, 0)
        for part in (weight.zeros, weight.scales)
    )
    return ((codes.float() - zeros) * scales).T


def gemm_w4a16_reference(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """y = x W^T: [num_tokens, in] -> [num_tokens, out] float32, computed in float32."""
    return x.float() @ dequantize_reference(weight).T
