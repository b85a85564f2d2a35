"""The forward pass of the Llama family over Triton's kernels, in whatever dtype the weights have.

The same operations in the same order as ``replica.model.llama``; that one is the definition.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from kernels.grouped_gemm.op import GroupedRows
from kernels.kv_write.op import kv_write
from kernels.moe.op import moe
from kernels.paged_attention.rows import AttentionOptions, AttentionRows
from kernels.paged_attention.triton_op import paged_attention
from kernels.rms_norm.triton_op import add_rms_norm_
from kernels.silu_mul.triton_op import silu_mul
from replica.gpu.adapters import DeviceAdapters
from replica.gpu.kv_cache import DeviceKvCache
from replica.gpu.weights import DeviceExperts, DeviceFeedForward, DeviceLayer, DeviceWeights
from replica.model.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """One step's rows, on the device."""

    token_ids: torch.Tensor  # [num_rows] int64
    positions: torch.Tensor  # [num_rows] int64
    slots: torch.Tensor  # [num_rows] int64: block * block_size + offset
    attention: AttentionRows
    adapted: GroupedRows | None = None  # None: no row is


class DeviceLlama:
    def __init__(
        self,
        config: LlamaConfig,
        weights: DeviceWeights,
        adapters: DeviceAdapters,
        *,
        split_keys: int | None = None,
    ) -> None:
        """split_keys: where attention is split, whatever the batch; None: as fills the device."""
        self.config = config
        self.adapters = adapters
        self._weights = weights
        self._options = {
            window: AttentionOptions(window=window, split_keys=split_keys)
            for window in {config.window(layer) for layer in range(config.num_layers)}
        }

    def hidden_states(self, inputs: DeviceInputs, cache: DeviceKvCache) -> torch.Tensor:
        """[num_rows, hidden], normalized."""
        weights, eps = self._weights, self.config.rms_norm_eps
        residual = weights.embedding[inputs.token_ids]
        normed = add_rms_norm_(residual, None, weights.layers[0].input_norm, eps)
        next_norms = [layer.input_norm for layer in weights.layers[1:]]
        for index, norm in enumerate([*next_norms, weights.final_norm]):
            layer = weights.layers[index]
            attended = self._attend(index, layer, normed, inputs, cache)
            delta = self._add_(index, inputs, "output", layer.output(attended), attended)
            normed = add_rms_norm_(residual, delta, layer.post_norm, eps)
            delta = self._feed_forward(index, layer.feed_forward, normed, inputs)
            normed = add_rms_norm_(residual, delta, norm, eps)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden] -> [num_rows, vocab] float32."""
        return self._weights.lm_head(hidden).float()

    def _feed_forward(
        self,
        index: int,
        weights: DeviceFeedForward | DeviceExperts,
        normed: torch.Tensor,
        inputs: DeviceInputs,
    ) -> torch.Tensor:
        if isinstance(weights, DeviceExperts):
            return moe(normed, F.linear(normed, weights.router), weights.experts)
        gate_up = self._add_(index, inputs, "gate_up", weights.gate_up(normed), normed)
        activated = silu_mul(gate_up)
        return self._add_(index, inputs, "down", weights.down(activated), activated)

    def _add_(
        self, index: int, inputs: DeviceInputs, matrix: str, y: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        """What adapters add to a product."""
        return self.adapters.add_(y, x, index, matrix, inputs.adapted)

    def _attend(
        self,
        index: int,
        layer: DeviceLayer,
        normed: torch.Tensor,
        inputs: DeviceInputs,
        cache: DeviceKvCache,
    ) -> torch.Tensor:
        config, parts = self.config, cache.of_layer(index)
        qkv = self._add_(index, inputs, "qkv", layer.qkv(normed), normed)
        kv_write(
            qkv, inputs.positions, inputs.slots, self._weights.tables, parts, cache.scales,
            layer.head_norms,
        )  # fmt: skip
        q = qkv[:, : config.num_heads * config.head_dim]
        options = self._options[config.window(index)]
        return paged_attention(
            q.view(len(q), -1, config.head_dim), parts, cache.scales, inputs.attention, options
        ).flatten(1)
