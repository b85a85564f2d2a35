"""The definition, in plain PyTorch."""

from dataclasses import dataclass

import torch

from kernels.silu_mul.reference import silu_mul_reference


@dataclass(frozen=True, slots=True)
class Experts:
    gate_up: torch.Tensor  # [num_experts, 2 * intermediate, hidden]: gate, then up
    down: torch.Tensor  # [num_experts, hidden, intermediate]
    top_k: int
    is_renormalized: bool = True  # the chosen ones' shares sum to 1


def route(router_logits: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_tokens, num_experts] -> shares float32 and experts int64, each [num_tokens, top_k].

    Source: Jiang et al. 2024, "Mixtral of Experts"; Qwen3-MoE as in the Hugging Face code.
    """
    shares = torch.softmax(router_logits.float(), dim=-1)
    chosen, ids = torch.topk(shares, experts.top_k, dim=-1)
    if experts.is_renormalized:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return chosen, ids


def moe_reference(x: torch.Tensor, router_logits: torch.Tensor, experts: Experts) -> torch.Tensor:
    """The chosen experts' answers, by their shares: [num_tokens, hidden] float32."""
    y = torch.zeros(x.shape, device=x.device)
    shares, ids = route(router_logits, experts)
    for token in range(len(x)):
        for share, expert in zip(shares[token], ids[token].tolist(), strict=True):
            gate_up = experts.gate_up[expert].float() @ x[token].float()
            inner = silu_mul_reference(gate_up[None])[0]
            y[token] += share * (experts.down[expert].float() @ inner)
    return y
