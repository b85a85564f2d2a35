"""The definition, in plain PyTorch."""

import torch


def add_rms_norm_reference(
    residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """r = residual + delta; y = r / sqrt(mean(r^2) + eps) * weight; returns (r, y).

    residual, delta: [num_tokens, hidden] float32
    weight:          [hidden]             float32

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    total = residual + delta
    return total, total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps) * weight
