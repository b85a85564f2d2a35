"""Weights of a Llama in the layout the forward pass wants, whatever file they came from."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch

from kernels.moe.reference import Experts
from replica.model.config import ExpertsConfig, LlamaConfig
from replica.model.experts import ExpertTensors, RoutedExperts, load_experts
from replica.model.tensor_source import (
    ReportProgress,
    TensorSource,
    assembles_tied,
    load_checked,
    refuse_unknown,
)

_NUM_LOADING_THREADS: Final = 2  # dequantization is numpy, which lets go of the interpreter lock


@dataclass(frozen=True, slots=True)
class FeedForward:
    gate_up: torch.Tensor  # [2 * intermediate, hidden]: gate, then up
    down: torch.Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [out, in]."""

    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]: q, then k, then v
    output: torch.Tensor  # [hidden, heads * head_dim]
    post_norm: torch.Tensor  # [hidden]
    feed_forward: FeedForward | RoutedExperts
    qkv_bias: torch.Tensor | None = None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: torch.Tensor | None = None  # [head_dim], as is the next one
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    lm_head: torch.Tensor  # [vocab, hidden]; the embedding itself when the model ties them


def assemble(
    source: TensorSource, config: LlamaConfig, report_progress: ReportProgress
) -> LlamaWeights:
    """Raises ModelInvalid for missing or misshapen tensors, ModelUnsupported for unknown ones."""
    names = set(source.names())
    refuse_unknown(names, config)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = _tensor(source, "model.embed_tokens.weight", vocab, hidden)
    layers: list[LayerWeights] = []
    with ThreadPoolExecutor(_NUM_LOADING_THREADS, "load") as pool:
        for layer in pool.map(lambda i: _layer(source, config, i), range(config.num_layers)):
            layers.append(layer)
            report_progress(len(layers) / config.num_layers)
    is_tied = assembles_tied(config, names)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=_tensor(source, "model.norm.weight", hidden),
        lm_head=embedding if is_tied else _tensor(source, "lm_head.weight", vocab, hidden),
    )


def _layer(source: TensorSource, config: LlamaConfig, index: int) -> LayerWeights:
    hidden = config.hidden_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def load(name: str, *shape: int, kind: str = "weight") -> torch.Tensor:
        return _tensor(source, f"model.layers.{index}.{name}.{kind}", *shape)

    def qkv_bias() -> torch.Tensor:
        sizes = (("q", q_size), ("k", kv_size), ("v", kv_size))
        return torch.cat([load(f"self_attn.{x}_proj", size, kind="bias") for x, size in sizes])

    return LayerWeights(
        input_norm=load("input_layernorm", hidden),
        qkv=torch.cat(
            [
                load("self_attn.q_proj", q_size, hidden),
                load("self_attn.k_proj", kv_size, hidden),
                load("self_attn.v_proj", kv_size, hidden),
            ]
        ),
        output=load("self_attn.o_proj", hidden, q_size),
        post_norm=load("post_attention_layernorm", hidden),
        feed_forward=(
            _feed_forward(load, config)
            if config.experts is None
            else _routed(load_experts(source, config, index), config.experts)
        ),
        qkv_bias=qkv_bias() if config.has_qkv_bias else None,
        q_norm=load("self_attn.q_norm", config.head_dim) if config.has_qk_norm else None,
        k_norm=load("self_attn.k_norm", config.head_dim) if config.has_qk_norm else None,
    )


def _feed_forward(load: Callable[..., torch.Tensor], config: LlamaConfig) -> FeedForward:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    gate, up = (load(f"mlp.{name}_proj", intermediate, hidden) for name in ("gate", "up"))
    return FeedForward(torch.cat([gate, up]), load("mlp.down_proj", hidden, intermediate))


def _routed(tensors: ExpertTensors, experts: ExpertsConfig) -> RoutedExperts:
    router, gate_up, down = map(torch.from_numpy, (tensors.router, tensors.gate_up, tensors.down))
    return RoutedExperts(
        router, Experts(gate_up, down, experts.top_k, is_renormalized=experts.is_renormalized)
    )


def _tensor(source: TensorSource, name: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(load_checked(source, name, shape))
