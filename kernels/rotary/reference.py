"""The definition, in plain PyTorch."""

import torch


def rotary_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (i, i + head_dim / 2) turned by the angle of their position.

    x:        [num_tokens, heads, head_dim] float32
    cos, sin: [num_tokens, head_dim / 2]    float32
    return:   like x

    Source: Su et al. 2021, "RoFormer", eq. 34, over halves as in the Hugging Face implementation.
    """
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
