"""Weights of a Llama on a device: a layer at a time goes from the file to where it stays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.gemm_fp8.op import quantize_rows
from kernels.gemm_fp8.reference import Float8Weight
from kernels.kv_write.reference import HeadNorms
from kernels.moe.reference import Experts
from replica.errors import ModelUnsupported
from replica.gpu.device import Device
from replica.gpu.fastest import FastestLinear, fastest_ways, sizes_through
from replica.gpu.int4_weights import int4_weight, stacked_int4
from replica.gpu.linear import (
    DenseLinear,
    DequantizedLinear,
    Float8Linear,
    Int4Linear,
    Linear,
)
from replica.model.config import ExpertsConfig, LlamaConfig
from replica.model.experts import load_experts
from replica.model.int4_tensors import Int4Tensors
from replica.model.rotary_tables import rotary_tables
from replica.model.tensor_source import (
    ReportProgress,
    TensorSource,
    assembles_tied,
    load_checked,
    refuse_unknown,
)


@dataclass(frozen=True, slots=True)
class DeviceFeedForward:
    gate_up: Linear  # hidden -> 2 * intermediate: gate, then up
    down: Linear  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    router: torch.Tensor  # [num_experts, hidden]
    experts: Experts


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim: q, then k, then v
    output: Linear  # heads * head_dim -> hidden
    post_norm: torch.Tensor  # [hidden]
    feed_forward: DeviceFeedForward | DeviceExperts
    head_norms: HeadNorms | None = None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: Sequence[DeviceLayer]
    final_norm: torch.Tensor  # [hidden]
    lm_head: Linear  # hidden -> vocab
    tables: tuple[torch.Tensor, torch.Tensor]  # cos and sin, [max_positions, head_dim / 2] float32


class WeightLoader:
    """Raises ModelInvalid for missing or misshapen tensors, ModelUnsupported for unknown ones."""

    def __init__(
        self,
        source: TensorSource,
        config: LlamaConfig,
        device: Device,
        dtype: torch.dtype,
        *,
        is_float8: bool = False,
        max_rows: int,
    ) -> None:
        """is_float8: layers' matrices also rounded, for where that is measured faster.

        max_rows: of a step; speeds are measured up to them.
        """
        refuse_unknown(set(source.names()), config)
        self._source = source
        self._config = config
        self._device = device
        self._dtype = dtype
        self._is_float8 = is_float8
        self._max_rows = max_rows
        if config.experts is not None and (is_float8 or isinstance(source, Int4Tensors)):
            raise ModelUnsupported("experts are computed in 16 bits on a GPU, or in float32")
        self._int4 = source if isinstance(source, Int4Tensors) else None
        if is_float8 and self._int4 is not None:
            raise ModelUnsupported("4-bit matrices are not rounded to float8")
        self._chosen: dict[tuple[int, int], list[str]] = {}  # by a matrix's (out, in)

    @property
    def size_bytes(self) -> int:
        """On the device, of all matrices and vectors."""
        is_tied = assembles_tied(self._config, set(self._source.names()))
        itemsize = self._dtype.itemsize + self._is_float8  # both are kept
        num_weights = self._config.num_weights(is_tied=is_tied)
        if self._int4 is None:
            return itemsize * num_weights
        num_dense = num_weights - self._int4.num_packed_weights
        return itemsize * num_dense + self._int4.packed_bytes(itemsize)

    def load(self, report_progress: ReportProgress) -> DeviceWeights:
        config = self._config
        embedding = self._tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = []
        for index in range(config.num_layers):
            layers.append(self._layer(index))
            report_progress(len(layers) / config.num_layers)
        lm_head = embedding
        if not assembles_tied(config, set(self._source.names())):
            lm_head = self._tensor("lm_head.weight", config.vocab_size, config.hidden_size)
        cos, sin = (self._device.upload(table) for table in rotary_tables(config))
        final_norm = self._tensor("model.norm.weight", config.hidden_size)
        return DeviceWeights(embedding, layers, final_norm, DenseLinear(lm_head), (cos, sin))

    def _layer(self, index: int) -> DeviceLayer:
        config, prefix = self._config, f"model.layers.{index}."
        hidden = config.hidden_size
        q_size = config.num_heads * config.head_dim
        sizes = {"q": q_size, "k": config.num_kv_heads * config.head_dim}
        sizes["v"] = sizes["k"]
        qkv = {f"{prefix}self_attn.{name}_proj": size for name, size in sizes.items()}
        bias = None
        if config.has_qkv_bias:
            names = [f"{prefix}self_attn.{name}_proj.bias" for name in sizes]
            bias = torch.cat(
                [self._tensor(n, s) for n, s in zip(names, sizes.values(), strict=True)]
            )
        return DeviceLayer(
            input_norm=self._tensor(prefix + "input_layernorm.weight", hidden),
            qkv=self._matrix(qkv, hidden, bias),
            output=self._matrix({prefix + "self_attn.o_proj": hidden}, q_size),
            post_norm=self._tensor(prefix + "post_attention_layernorm.weight", hidden),
            feed_forward=(
                self._feed_forward(prefix)
                if config.experts is None
                else self._experts(index, config.experts)
            ),
            head_norms=self._head_norms(prefix) if config.has_qk_norm else None,
        )

    def _feed_forward(self, prefix: str) -> DeviceFeedForward:
        hidden, intermediate = self._config.hidden_size, self._config.intermediate_size
        gate_up = {f"{prefix}mlp.{name}_proj": intermediate for name in ("gate", "up")}
        return DeviceFeedForward(
            gate_up=self._matrix(gate_up, hidden),
            down=self._matrix({prefix + "mlp.down_proj": hidden}, intermediate),
        )

    def _experts(self, index: int, config: ExpertsConfig) -> DeviceExperts:
        tensors = load_experts(self._source, self._config, index)
        router, gate_up, down = (
            self._device.upload(values).to(self._dtype)
            for values in (tensors.router, tensors.gate_up, tensors.down)
        )
        return DeviceExperts(
            router, Experts(gate_up, down, config.top_k, is_renormalized=config.is_renormalized)
        )

    def _matrix(
        self, rows_of_names: dict[str, int], in_features: int, bias: torch.Tensor | None = None
    ) -> Linear:
        """Of several tensors' rows, one after the other."""
        names = [name + ".weight" for name in rows_of_names]
        if self._int4 is None or not all(map(self._int4.is_packed, names)):
            return self._linear(self._stacked(rows_of_names, in_features), bias)
        parts = [
            int4_weight(self._device, self._int4.parts(name), self._int4.method, self._dtype)
            for name in names
        ]
        weight = stacked_int4(parts, [*rows_of_names.values()], in_features)
        return self._fastest(
            {"int4": Int4Linear(weight, bias), "dequantized": DequantizedLinear(weight, bias)},
            (weight.out_features, in_features),
        )

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Biases are few, and their matrices stay as they are."""
        dense = DenseLinear(weight, bias)
        if not self._is_float8 or bias is not None:
            return dense
        rounded = quantize_rows(weight, in_blocks=False)
        ways: dict[str, Linear] = {
            "dense": dense,
            "float8": Float8Linear(Float8Weight(rounded.codes, rounded.scales.contiguous())),
        }
        return self._fastest(ways, (weight.shape[0], weight.shape[1]))

    def _fastest(self, ways: dict[str, Linear], shape: tuple[int, int]) -> Linear:
        """shape: (out, in); what was measured for one of a shape holds for all of it."""
        if shape not in self._chosen:
            self._chosen[shape] = self._measured(ways, shape[1])
        return FastestLinear(ways, self._chosen[shape])

    def _measured(self, ways: dict[str, Linear], in_features: int) -> list[str]:
        largest = torch.randn(
            sizes_through(self._max_rows)[-1], in_features, dtype=self._dtype,
            device=self._device.torch_device,
        )  # fmt: skip
        batches = [largest[:size] for size in sizes_through(self._max_rows)]
        return fastest_ways(ways, batches, self._device.measure_s)

    def _head_norms(self, prefix: str) -> HeadNorms:
        head_dim = self._config.head_dim
        return HeadNorms(
            q=self._tensor(prefix + "self_attn.q_norm.weight", head_dim),
            k=self._tensor(prefix + "self_attn.k_norm.weight", head_dim),
            eps=self._config.rms_norm_eps,
        )

    def _stacked(self, rows_of_names: dict[str, int], in_features: int) -> torch.Tensor:
        parts = [
            load_checked(self._source, name + ".weight", (rows, in_features))
            for name, rows in rows_of_names.items()
        ]
        return self._device.upload(np.concatenate(parts)).to(self._dtype)

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        return self._device.upload(load_checked(self._source, name, shape)).to(self._dtype)
