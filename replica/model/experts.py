"""Mixtures of experts: what checkpoints call their tensors, and what they compute on a CPU.

Source: Jiang et al. 2024, "Mixtral of Experts"; the order of operations follows Hugging Face's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from kernels.moe.reference import Experts, route
from replica.model.config import LlamaConfig
from replica.model.tensor_source import Floats, TensorSource, load_checked


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Of one layer."""

    router: torch.Tensor  # [num_experts, hidden]
    experts: Experts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden], both; each expert is multiplied with the rows that chose it."""
        experts = self.experts
        shares, ids = route(F.linear(x, self.router), experts)
        y = torch.zeros_like(x)
        for expert in sorted(set(ids.flatten().tolist())):
            rows, places = torch.where(ids == expert)
            gate, up = F.linear(x[rows], experts.gate_up[expert]).chunk(2, dim=-1)
            answers = F.linear(F.silu(gate) * up, experts.down[expert])
            y.index_add_(0, rows, answers * shares[rows, places, None])
        return y


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """As files hold them, float32."""

    router: Floats  # [num_experts, hidden]
    gate_up: Floats  # [num_experts, 2 * intermediate, hidden]: gate, then up
    down: Floats  # [num_experts, hidden, intermediate]


def load_experts(source: TensorSource, model: LlamaConfig, layer: int) -> ExpertTensors:
    """Raises ModelInvalid."""
    experts, hidden = model.experts, model.hidden_size
    assert experts is not None
    inner = (experts.intermediate_size, hidden)
    prefix = f"model.layers.{layer}."

    def load(names: Sequence[str], *shape: int) -> Floats:
        return np.stack([load_checked(source, prefix + name, shape) for name in names])

    gate, up, down = (
        load([part.format(index) for index in range(experts.num)], *shape)
        for part, shape in zip(experts.names.parts, (inner, inner, inner[::-1]), strict=True)
    )
    router = load_checked(source, prefix + experts.names.router, (experts.num, hidden))
    return ExpertTensors(router, np.concatenate([gate, up], axis=1), down)
