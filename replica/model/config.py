"""The shape of a Llama-architecture model, and the refusal of everything this engine does not run.

A setting that would change the numbers is either honoured or named in an error; none is ignored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replica.errors import ModelInvalid, ModelUnsupported

# Values come from files: any JSON or GGUF type can stand anywhere, so each is checked on reading.
Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # tokens
    rope_theta: float
    rms_norm_eps: float

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ModelInvalid(
                f"{self.num_heads} heads of dimension {self.head_dim} "
                f"do not divide over {self.num_kv_heads} KV heads"
            )

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values, all layers, float32."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 4


def config_from_gguf(metadata: Metadata) -> LlamaConfig:
    architecture = _text(metadata, "general.architecture")
    if architecture != "llama":
        raise ModelUnsupported(f"expected architecture 'llama', got {architecture!r}")
    _refuse_unless(metadata, "llama.rope.scaling.type", (None, "none"))
    _refuse_unless(metadata, "llama.expert_count", (None, 0))
    _refuse_unless(metadata, "llama.attention.sliding_window", (None, 0))
    _refuse_unless(metadata, "llama.rope.scale_linear", (None, 1.0))
    _refuse_unless(metadata, "split.count", (None, 0, 1))
    num_heads = _positive(metadata, "llama.attention.head_count")
    hidden_size = _positive(metadata, "llama.embedding_length")
    head_dim = _positive(metadata, "llama.attention.key_length", hidden_size // num_heads)
    _refuse_unless(metadata, "llama.attention.value_length", (None, head_dim))
    _refuse_unless(metadata, "llama.rope.dimension_count", (None, head_dim))
    return LlamaConfig(
        vocab_size=len(metadata.get("tokenizer.ggml.tokens", ())),
        hidden_size=hidden_size,
        intermediate_size=_positive(metadata, "llama.feed_forward_length"),
        num_layers=_positive(metadata, "llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=_positive(metadata, "llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=_positive(metadata, "llama.context_length"),
        rope_theta=_number(metadata, "llama.rope.freq_base", 10_000.0),
        rms_norm_eps=_number(metadata, "llama.attention.layer_norm_rms_epsilon"),
    )


def config_from_hf(config: Metadata) -> LlamaConfig:
    """``config`` is a Hugging Face ``config.json``, as written by transformers 4 or 5."""
    model_type = _text(config, "model_type")
    if model_type != "llama":
        raise ModelUnsupported(f"expected model_type 'llama', got {model_type!r}")
    _refuse_unless(config, "hidden_act", (None, "silu"))
    _refuse_unless(config, "attention_bias", (None, False))
    _refuse_unless(config, "mlp_bias", (None, False))
    _refuse_unless(config, "quantization_config", (None,))
    num_heads = _positive(config, "num_attention_heads")
    hidden_size = _positive(config, "hidden_size")
    return LlamaConfig(
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_positive(config, "num_key_value_heads", num_heads),
        head_dim=_positive(config, "head_dim", hidden_size // num_heads),
        max_positions=_positive(config, "max_position_embeddings"),
        rope_theta=_hf_rope_theta(config),
        rms_norm_eps=_number(config, "rms_norm_eps"),
    )


def _hf_rope_theta(config: Metadata) -> float:
    """transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope is None:
            continue
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise ModelUnsupported(f"{key}: rope type {rope_type!r} is not supported")
        if "rope_theta" in rope:
            return _number(rope, "rope_theta")
    return _number(config, "rope_theta", 10_000.0)


def _refuse_unless(metadata: Metadata, key: str, accepted: tuple[object, ...]) -> None:
    value = metadata.get(key)
    if value not in accepted:
        raise ModelUnsupported(f"{key}={value!r} is not supported")


def _checked(
    metadata: Metadata, key: str, default: object, is_valid: Callable[[Any], bool]
) -> Any:  # narrowed by the callers below
    value = metadata.get(key)
    if value is None:
        value = default
    if not is_valid(value):
        raise ModelInvalid(f"model metadata: {key}={value!r} is missing or wrong")
    return value


def _positive(metadata: Metadata, key: str, default: int | None = None) -> int:
    return int(_checked(metadata, key, default, lambda v: type(v) is int and v > 0))


def _number(metadata: Metadata, key: str, default: float | None = None) -> float:
    return float(_checked(metadata, key, default, lambda v: type(v) in (int, float) and v > 0))


def _text(metadata: Metadata, key: str) -> str:
    return str(_checked(metadata, key, None, lambda v: isinstance(v, str)))
