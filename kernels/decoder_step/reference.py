"""The definition, in plain PyTorch: one sequence, all positions, nothing cached."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from kernels.decoder_step.model import DecoderShape, DecoderWeights, LayerWeights
from kernels.linear.reference import unpack
from kernels.rotary.reference import rotary_reference


@dataclass(frozen=True, slots=True)
class DecoderReference:
    """Source: Touvron et al. 2023, "LLaMA"."""

    shape: DecoderShape
    weights: DecoderWeights

    def logits(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 from position 0 on -> [num_tokens, vocab] float32."""
        hidden = torch.from_numpy(unpack(self.weights.embedding))[token_ids]
        for layer in self.weights.layers:
            hidden = hidden + self._attend(layer, self._norm(hidden, layer.input_norm))
            hidden = hidden + self._feed_forward(layer, self._norm(hidden, layer.post_norm))
        normed = self._norm(hidden, self.weights.final_norm)
        return F.linear(normed, torch.from_numpy(unpack(self.weights.lm_head)))

    def _attend(self, layer: LayerWeights, normed: torch.Tensor) -> torch.Tensor:
        shape, num_tokens = self.shape, len(normed)
        qkv = F.linear(normed, torch.from_numpy(unpack(layer.qkv)))
        heads = qkv.view(num_tokens, -1, shape.head_dim)
        num_turned = shape.num_heads + shape.num_kv_heads
        cos = torch.from_numpy(self.weights.cos[:num_tokens])
        sin = torch.from_numpy(self.weights.sin[:num_tokens])
        turned = rotary_reference(heads[:, :num_turned], cos, sin)
        attended = F.scaled_dot_product_attention(
            turned[:, : shape.num_heads].transpose(0, 1)[None],
            turned[:, shape.num_heads :].transpose(0, 1)[None],
            heads[:, num_turned:].transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )
        rows = attended[0].transpose(0, 1).reshape(num_tokens, -1)
        return F.linear(rows, torch.from_numpy(unpack(layer.output)))

    def _feed_forward(self, layer: LayerWeights, normed: torch.Tensor) -> torch.Tensor:
        gate_up = F.linear(normed, torch.from_numpy(unpack(layer.gate_up)))
        gate, up = gate_up.chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, torch.from_numpy(unpack(layer.down)))

    def _norm(self, x: torch.Tensor, weight: object) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.shape.rms_norm_eps)
        return x * scale * torch.as_tensor(weight)
