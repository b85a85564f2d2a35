"""Tensors of a model file: what every loader offers, and what is checked of all of them.

Plain numpy: the compiled step needs no torch, and the memory and seconds it takes.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.config import ExpertsConfig, LlamaConfig

ReportProgress = Callable[[float], None]
Floats = npt.NDArray[np.float32]


class TensorSource(Protocol):
    """Tensors by the names, and with the order of rows, of a Hugging Face Llama checkpoint.

    Each raises ModelInvalid for a missing one.
    """

    def names(self) -> Collection[str]: ...

    def load(self, name: str) -> Floats:
        """Contiguous and writable."""
        ...

    def stored_format(self, name: str) -> str:
        """What the file holds: ``float32``, ``bfloat16``, or GGUF's own name, such as ``q4_1``."""
        ...

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        """A matrix as the file holds it: [out, bytes of a row] uint8, or [out, in] of floats.

        bfloat16 comes as uint16.  It may be a view of the file.
        """
        ...


def assembles_tied(config: LlamaConfig, names: Collection[str]) -> bool:
    """Whether the embedding serves as the output matrix, too.

    A checkpoint may hold both and say so: then its own output matrix is not used.
    """
    return config.is_tied or (config.is_tied is None and "lm_head.weight" not in names)


def load_checked(source: TensorSource, name: str, shape: tuple[int, ...]) -> Floats:
    """Raises ModelInvalid."""
    tensor = source.load(name)
    if tensor.shape != shape:
        raise ModelInvalid(f"tensor {name}: expected shape {shape}, got {tensor.shape}")
    return tensor


_LAYER_TENSORS: Final = (
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
)  # fmt: skip
_FEED_FORWARD_TENSORS: Final = (
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip
_BIAS_TENSORS: Final = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
_NORM_TENSORS: Final = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


def expert_tensors(experts: ExpertsConfig) -> Iterator[str]:
    """Of a layer, behind its name."""
    yield experts.names.router
    for part in experts.names.parts:
        yield from (part.format(index) for index in range(experts.num))


def refuse_unknown(names: Collection[str], config: LlamaConfig) -> None:
    """A tensor nobody reads would mean an architecture we only believe to know."""
    known = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    tensors = [*_LAYER_TENSORS]
    tensors += _BIAS_TENSORS if config.has_qkv_bias else ()
    tensors += _NORM_TENSORS if config.has_qk_norm else ()
    if config.experts is None:
        tensors += _FEED_FORWARD_TENSORS
    else:
        tensors += expert_tensors(config.experts)
    for index in range(config.num_layers):
        known.update(f"model.layers.{index}.{tensor}" for tensor in tensors)
    unknown = sorted(n for n in names if n not in known and not n.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ModelUnsupported(
            f"{len(unknown)} tensors are not of this architecture, first {unknown[0]!r}"
        )
