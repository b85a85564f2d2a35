"""Weights of a Llama in the layout the forward pass wants, whatever file they came from."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy.typing as npt
import torch

from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.config import LlamaConfig

_NUM_LOADING_THREADS: Final = 2  # dequantization is numpy, which lets go of the interpreter lock

ReportProgress = Callable[[float], None]


class TensorSource(Protocol):
    """Tensors by the names, and with the order of rows, of a Hugging Face Llama checkpoint.

    Each raises ModelInvalid for a missing one.
    """

    def names(self) -> Collection[str]: ...

    def load(self, name: str) -> torch.Tensor:
        """Contiguous float32."""
        ...

    def stored_format(self, name: str) -> str:
        """What the file holds: ``float32``, ``bfloat16``, or GGUF's own name, such as ``q4_1``."""
        ...

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        """A matrix as the file holds it: [out, bytes of a row] uint8, or [out, in] of floats.

        bfloat16 comes as uint16.  It may be a view of the file.
        """
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [out, in]."""

    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]: q, then k, then v
    output: torch.Tensor  # [hidden, heads * head_dim]
    post_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]: gate, then up
    down: torch.Tensor  # [hidden, intermediate]
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
    embedding = load_checked(source, "model.embed_tokens.weight", (vocab, hidden))
    layers: list[LayerWeights] = []
    with ThreadPoolExecutor(_NUM_LOADING_THREADS, "load") as pool:
        for layer in pool.map(lambda i: _layer(source, config, i), range(config.num_layers)):
            layers.append(layer)
            report_progress(len(layers) / config.num_layers)
    is_tied = assembles_tied(config, names)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=load_checked(source, "model.norm.weight", (hidden,)),
        lm_head=embedding if is_tied else load_checked(source, "lm_head.weight", (vocab, hidden)),
    )


def assembles_tied(config: LlamaConfig, names: Collection[str]) -> bool:
    """Whether the embedding serves as the output matrix, too.

    A checkpoint may hold both and say so: then its own output matrix is not used.
    """
    return config.is_tied or (config.is_tied is None and "lm_head.weight" not in names)


def _layer(source: TensorSource, config: LlamaConfig, index: int) -> LayerWeights:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def load(name: str, *shape: int, kind: str = "weight") -> torch.Tensor:
        return load_checked(source, f"model.layers.{index}.{name}.{kind}", shape)

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
        gate_up=torch.cat(
            [load("mlp.gate_proj", intermediate, hidden), load("mlp.up_proj", intermediate, hidden)]
        ),
        down=load("mlp.down_proj", hidden, intermediate),
        qkv_bias=qkv_bias() if config.has_qkv_bias else None,
        q_norm=load("self_attn.q_norm", config.head_dim) if config.has_qk_norm else None,
        k_norm=load("self_attn.k_norm", config.head_dim) if config.has_qk_norm else None,
    )


def load_checked(source: TensorSource, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Raises ModelInvalid."""
    tensor = source.load(name)
    if tuple(tensor.shape) != shape:
        raise ModelInvalid(f"tensor {name}: expected shape {shape}, got {tuple(tensor.shape)}")
    return tensor


_LAYER_TENSORS: Final = (
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip
_BIAS_TENSORS: Final = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
_NORM_TENSORS: Final = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


def refuse_unknown(names: Collection[str], config: LlamaConfig) -> None:
    """A tensor nobody reads would mean an architecture we only believe to know."""
    known = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    tensors = [*_LAYER_TENSORS]
    tensors += _BIAS_TENSORS if config.has_qkv_bias else ()
    tensors += _NORM_TENSORS if config.has_qk_norm else ()
    for index in range(config.num_layers):
        known.update(f"model.layers.{index}.{tensor}" for tensor in tensors)
    unknown = sorted(n for n in names if n not in known and not n.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ModelUnsupported(
            f"{len(unknown)} tensors are not of this architecture, first {unknown[0]!r}"
        )
