"""The definition, in plain PyTorch."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Adapters:
    """Of one matrix of the model; shorter ranks are padded with zeros."""

    shrink: torch.Tensor  # [num_adapters, rank, in]
    expand: torch.Tensor  # [num_adapters, out, rank]
    scales: torch.Tensor  # [num_adapters] float32: alpha / rank


def lora_reference(
    y: torch.Tensor, x: torch.Tensor, adapters: Adapters, ids: torch.Tensor
) -> torch.Tensor:
    """y + scale * expand (shrink x), of each row's adapter; float32, or y where there is none.

    y:   [num_tokens, out]: the model's own answer
    x:   [num_tokens, in]
    ids: [num_tokens] int64; negative: no adapter

    Source: Hu et al. 2021, "LoRA"; rows of several adapters: Chen et al. 2023, "Punica".
    """
    result = y.float()
    for row, adapter in enumerate(ids.tolist()):
        if adapter >= 0:
            inner = adapters.shrink[adapter].float() @ x[row].float()
            result[row] += adapters.scales[adapter] * (adapters.expand[adapter].float() @ inner)
    return result
