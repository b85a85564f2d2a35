"""Tensors of a Llama-architecture GGUF under Hugging Face names and in Hugging Face order."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replica.errors import ModelInvalid
from replica.model.config import LlamaConfig
from replica.model.gguf_file import GgufFile
from replica.model.rope_scaling import GivenScaling

_TOP: Final[Mapping[str, str]] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_DIVISORS: Final = "rope_freqs.weight"  # see ``with_rope``
_FLOATS: Final[Mapping[str, str]] = {"f32": "float32", "bf16": "bfloat16"}
_FLOAT_DTYPES: Final[Mapping[str, type[np.generic]]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
}
_BLOCK_NAME: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


class GgufTensors:
    """A TensorSource."""

    def __init__(self, file: GgufFile, config: LlamaConfig) -> None:
        self._file = file
        self._config = config
        self._gguf_names = {_hf_name(n): n for n in file.tensors if n != ROPE_DIVISORS}

    def names(self) -> Collection[str]:
        return self._gguf_names.keys()

    def load(self, name: str) -> npt.NDArray[np.float32]:
        return self._in_hf_order(name, self._file.dequantize(self._gguf_name(name)))

    def stored_format(self, name: str) -> str:
        kind = self._file.entry(self._gguf_name(name)).kind.name.lower()
        return _FLOATS.get(kind, kind)

    def load_stored(self, name: str) -> npt.NDArray[Any]:
        raw = self._file.raw(self._gguf_name(name))
        dtype = _FLOAT_DTYPES.get(self.stored_format(name), np.uint8)
        return self._in_hf_order(name, raw.view(dtype))

    def _gguf_name(self, name: str) -> str:
        return self._gguf_names.get(name, name)

    def _in_hf_order(self, name: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if name.endswith("q_proj.weight"):
            return _unpermute(rows, self._config.num_heads)
        if name.endswith("k_proj.weight"):
            return _unpermute(rows, self._config.num_kv_heads)
        return rows


def with_rope(config: LlamaConfig, file: GgufFile) -> LlamaConfig:
    """With how its frequencies are scaled, if the file says so.  Raises ModelInvalid.

    llama.cpp's converter writes Llama 3.1's scaling as what each frequency is divided by.
    """
    if ROPE_DIVISORS not in file.tensors:
        return config
    divisors = file.dequantize(ROPE_DIVISORS)
    is_usable = np.isfinite(divisors).all() and (divisors > 0).all()
    if divisors.shape != (config.head_dim // 2,) or not is_usable:
        raise ModelInvalid(
            f"tensor {ROPE_DIVISORS}: expected {config.head_dim // 2} numbers above 0"
        )
    return replace(config, rope_scaling=GivenScaling(tuple(divisors.tolist())))


def _hf_name(gguf_name: str) -> str:
    """Unknown names pass through, to be refused by whoever knows what is needed."""
    match = _BLOCK_NAME.fullmatch(gguf_name)
    if match is not None and match[2] in _IN_BLOCK:
        return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.weight"
    return _TOP.get(gguf_name, gguf_name)


def _unpermute(rows: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """[heads, head_dim/2, 2] rows -> [heads, 2, head_dim/2] rows, whatever a row holds.

    llama.cpp rotates neighbouring pairs and its converter reorders the rows of q and k to suit;
    we rotate halves, as the original checkpoint does.  Each tensor has its own number of heads.
    """
    num_rows, width = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(num_rows, width)
