"""The forward pass of the Llama family over a flat batch, float32, with attention handed in.

Source: Touvron et al. 2023, "LLaMA"; operation order follows the Hugging Face implementation, so
that greedy decoding gives the same tokens.
"""

from typing import Final, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from replica.model.adapted_rows import AdaptedRows
from replica.model.config import LlamaConfig
from replica.model.weights import FeedForward, LayerWeights, LlamaWeights

_NOT_ADAPTED: Final = AdaptedRows()


class Attention(Protocol):
    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, attend over everything stored for each row's sequence.

        q: [num_tokens, heads, head_dim]; k, v: [num_tokens, kv_heads, head_dim]
        return: [num_tokens, heads * head_dim]
        """
        ...


class LlamaModel:
    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self._weights = weights
        self._cos, self._sin = rotary_tables(config)

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        adapted: AdaptedRows = _NOT_ADAPTED,
    ) -> torch.Tensor:
        """token_ids, positions: [num_tokens] int64; return: [num_tokens, hidden], normalized."""
        hidden = self._weights.embedding[token_ids]
        cos = self._cos[positions].unsqueeze(1)  # [num_tokens, 1, head_dim]
        sin = self._sin[positions].unsqueeze(1)
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(hidden, layer.input_norm)
            qkv = F.linear(normed, layer.qkv, layer.qkv_bias)
            q, k, v = self._heads(layer, adapted.add_(qkv, normed, index, "qkv"), cos, sin)
            attended = attention.attend(index, q, k, v)
            output = F.linear(attended, layer.output)
            hidden = hidden + adapted.add_(output, attended, index, "output")
            normed = self._norm(hidden, layer.post_norm)
            feed_forward = layer.feed_forward
            if isinstance(feed_forward, FeedForward):
                hidden = hidden + _feed_forward(feed_forward, normed, adapted, index)
            else:
                hidden = hidden + feed_forward(normed)
        return self._norm(hidden, self._weights.final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden] -> [num_rows, vocab]."""
        return F.linear(hidden, self._weights.lm_head)

    def _heads(
        self, layer: LayerWeights, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = qkv.view(len(qkv), -1, config.head_dim)
        q_and_k = _rotate(self._norm_heads(layer, qkv[:, :num_rotated]), cos, sin)
        return q_and_k[:, : config.num_heads], q_and_k[:, config.num_heads :], qkv[:, num_rotated:]

    def _norm_heads(self, layer: LayerWeights, q_and_k: torch.Tensor) -> torch.Tensor:
        """Qwen3: each head by itself, before it is rotated.  [num_tokens, heads, head_dim]."""
        if layer.q_norm is None or layer.k_norm is None:
            return q_and_k
        num_heads = self.config.num_heads
        q = self._norm(q_and_k[:, :num_heads], layer.q_norm)
        return torch.cat((q, self._norm(q_and_k[:, num_heads:], layer.k_norm)), dim=1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """y = x / sqrt(mean(x^2) + eps) * weight."""
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return weight * (x * scale)


def _feed_forward(
    weights: FeedForward, normed: torch.Tensor, adapted: AdaptedRows, index: int
) -> torch.Tensor:
    gate_up = F.linear(normed, weights.gate_up)
    gate, up = adapted.add_(gate_up, normed, index, "gate_up").chunk(2, dim=-1)
    activated = F.silu(gate) * up
    return adapted.add_(F.linear(activated, weights.down), activated, index, "down")


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding over halves.  Su et al. 2021, "RoFormer", eq. 34."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


def rotary_tables(config: LlamaConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [max_positions, head_dim]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    powers, scaling = config.rope_theta**exponents, config.rope_scaling
    frequencies = (
        1.0 / powers if scaling is None else torch.from_numpy(scaling.frequencies(powers.numpy()))
    )
    angles = torch.arange(config.max_positions).float()[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    factor = 1.0 if scaling is None else scaling.attention_factor
    return angles.cos() * factor, angles.sin() * factor
