"""The definition, in plain PyTorch."""

import torch


def grouped_gemm_reference(
    x: torch.Tensor, weights: torch.Tensor, groups: torch.Tensor, copies: int
) -> torch.Tensor:
    """y[i] = weights[groups[i]] x[i / copies]: float32; zero where a row has no group.

    x:       [num_rows / copies, in]
    weights: [num_groups, out, in]
    groups:  [num_rows] int64; negative: none
    """
    y = torch.zeros(len(groups), weights.shape[1], device=x.device)
    for row, group in enumerate(groups.tolist()):
        if group >= 0:
            y[row] = weights[group].float() @ x[row // copies].float()
    return y
