"""Adapters of random numbers as PEFT writes them, and models that they are merged into by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

ALL: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PREFIX: Final = "base_model.model."


def save_adapter(
    folder: Path,
    model: PreTrainedModel,
    *,
    seed: int,
    modules: Sequence[str] = ALL,
    rank: int = 4,
    **changes: Any,
) -> Path:
    """``changes``: of its configuration."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules:
            out_features, in_features = parameter.shape
            shrink = torch.randn(rank, in_features, generator=generator)
            expand = torch.randn(out_features, rank, generator=generator)
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = shrink / in_features**0.5
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = expand * 0.3
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank} | changes
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    return folder


def merge(model: PreTrainedModel, folder: Path, scales: Mapping[str, float]) -> None:
    """In place.  ``scales``: by the last part of a module's name."""
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = name.removesuffix(".weight")
            if f"{_PREFIX}{module}.lora_A.weight" in tensors:
                shrink, expand = (
                    tensors[f"{_PREFIX}{module}.lora_{side}.weight"].float() for side in "AB"
                )
                parameter += scales[module.rpartition(".")[2]] * expand @ shrink
