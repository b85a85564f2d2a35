"""The definition, in plain PyTorch."""

import torch

from kernels.quantize.formats import GROUP_SIZE, LARGEST_CODE


def quantize_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """code = round(x / scale), scale = largest |x| of the group / 127, as float32.

    x:      [num_tokens, num_groups * 32] float32
    return: codes [num_tokens, num_groups, 32] int8 and scales [num_tokens, num_groups] float32
    """
    groups = x.view(len(x), x.shape[1] // GROUP_SIZE, GROUP_SIZE)
    largest = groups.abs().amax(-1)
    inverse = torch.where(largest == 0.0, 0.0, LARGEST_CODE / largest)
    codes = torch.round(groups * inverse[..., None]).to(torch.int8)
    return codes, largest * torch.tensor(1.0 / LARGEST_CODE)


def dequantize_reference(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[num_tokens, num_groups * 32] float32."""
    return (codes.float() * scales[..., None]).flatten(1)
