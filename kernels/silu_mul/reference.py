"""The definition, in plain PyTorch."""

import torch


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """y = gate / (1 + exp(-gate)) * up.

    gate_up: [num_tokens, 2 * size] float32: gate, then up
    return:  [num_tokens, size]     float32

    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
