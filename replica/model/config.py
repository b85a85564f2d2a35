"""The shape of a model of the Llama family, and the refusal of everything this engine does not run.

Qwen2 is Llama with biases on q, k and v; Qwen3 is Llama with norms on the heads of q and k; Mistral
is Llama; Mixtral and Qwen3-MoE are those with experts; each but Llama may have layers that see a
window of positions only.  A setting that would change the numbers is either honoured or named in an
error; none is ignored.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

# Values come from files: any JSON or GGUF type can stand anywhere, so each is checked on reading.
Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Of tensors, behind their layer's name."""

    router: str
    parts: tuple[str, str, str]  # gate, up and down, with the expert's number to be put in


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """In the place of a layer's one feed-forward network: several, of which each token has few."""

    num: int
    top_k: int
    intermediate_size: int  # of each
    is_renormalized: bool  # the chosen ones' shares sum to 1
    names: ExpertNames

    def num_weights(self, hidden_size: int) -> int:
        """Of a layer's, router included."""
        return self.num * hidden_size * (1 + 3 * self.intermediate_size)


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
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool | None = None  # the output matrix is the embedding; None: if it has no own
    windows: tuple[int | None, ...] = ()  # see ``window``; (): none has one
    experts: ExpertsConfig | None = None  # in all layers; intermediate_size is theirs then
    rope_scaling: RopeScaling | None = None

    def window(self, layer: int) -> int | None:
        """How many positions a row of that layer sees, its own the last; None: all before it."""
        return self.windows[layer] if self.windows else None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ModelInvalid(
                f"{self.num_heads} heads of dimension {self.head_dim} "
                f"do not divide over {self.num_kv_heads} KV heads"
            )

    def num_weights(self, *, is_tied: bool) -> int:
        """Numbers in all matrices and vectors."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv_size = q_size + 2 * kv_size
        layer = self.hidden_size * (qkv_size + q_size + 2)
        if self.experts is None:
            layer += self.hidden_size * 3 * self.intermediate_size
        else:
            layer += self.experts.num_weights(self.hidden_size)
        layer += qkv_size * self.has_qkv_bias + 2 * self.head_dim * self.has_qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if is_tied else 2)
        return embeddings + self.num_layers * layer + self.hidden_size


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
    family = _text(config, "model_type")
    if family not in HF_FAMILIES:
        raise ModelUnsupported(f"expected model_type one of {list(HF_FAMILIES)}, got {family!r}")
    experts = _hf_experts(config, family)
    for key, accepted in _HF_NEUTRAL.items():
        _refuse_unless(config, key, accepted)
    if experts is None:
        for key, accepted in _HF_WITHOUT_EXPERTS.items():
            _refuse_unless(config, key, accepted)
    rope_theta, rope_scaling = _hf_rope(config)
    max_positions = _positive(config, "max_position_embeddings")
    if isinstance(rope_scaling, YarnScaling):  # may be stated as before it, as Qwen's are
        max_positions = max(max_positions, rope_scaling.max_positions)
    num_layers = _positive(config, "num_hidden_layers")
    num_heads = _positive(config, "num_attention_heads")
    hidden_size = _positive(config, "hidden_size")
    return LlamaConfig(
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=(
            _positive(config, "intermediate_size") if experts is None else experts.intermediate_size
        ),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_positive(config, "num_key_value_heads", num_heads),
        head_dim=_positive(
            config, "head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else hidden_size // num_heads
        ),
        max_positions=max_positions,
        rope_theta=rope_theta,
        rms_norm_eps=_number(config, "rms_norm_eps", _HF_RMS_NORM_EPS),
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family.startswith("qwen3"),
        is_tied=config.get("tie_word_embeddings") is True,
        windows=_hf_windows(config, family, num_layers, max_positions),
        experts=experts,
        rope_scaling=rope_scaling,
    )


HF_FAMILIES: Final = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
_MIXTRAL: Final = ExpertNames(
    "block_sparse_moe.gate.weight",
    (
        "block_sparse_moe.experts.{}.w1.weight",
        "block_sparse_moe.experts.{}.w3.weight",
        "block_sparse_moe.experts.{}.w2.weight",
    ),
)
_QWEN3_MOE: Final = ExpertNames(
    "mlp.gate.weight",
    (
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight",
        "mlp.experts.{}.down_proj.weight",
    ),
)
_QWEN3_HEAD_DIM: Final = 128  # transformers' default, as is the next one
_HF_RMS_NORM_EPS: Final = 1e-6

# What related architectures put into config.json and what would change the numbers.
_HF_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "attention_bias": (None, False),
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1),
    "final_logit_softcapping": (None,),
    "hidden_act": (None, "silu"),
    "is_causal": (None, True),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "mlp_bias": (None, False),
    "no_rope_layers": (None, []),
    "partial_rotary_factor": (None, 1),
    "pretraining_tp": (None, 1),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1),
    "rope_interleaved": (None, False),
    "use_qk_norm": (None, False),
}
_HF_WITHOUT_EXPERTS: Final[Mapping[str, tuple[object, ...]]] = {
    "moe_intermediate_size": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
}


def _hf_experts(config: Metadata, family: str) -> ExpertsConfig | None:
    """Raises ModelError."""
    match family:
        case "mixtral":
            num, size, is_renormalized = "num_local_experts", "intermediate_size", True
            names = _MIXTRAL
        case "qwen3_moe":
            num, size, names = "num_experts", "moe_intermediate_size", _QWEN3_MOE
            is_renormalized = config.get("norm_topk_prob") is True
            _refuse_unless(config, "decoder_sparse_step", (None, 1))
            _refuse_unless(config, "mlp_only_layers", (None, []))
        case _:
            return None
    # Either name is in use in either family.
    stated = {num: config.get("num_experts", config.get("num_local_experts"))}
    _refuse_unless(config, "num_local_experts", (None, stated[num]))
    if family == "mixtral":
        _refuse_unless(config, "moe_intermediate_size", (None, config.get(size)))
    experts = ExpertsConfig(
        num=_positive(stated, num),
        top_k=_positive(config, "num_experts_per_tok"),
        intermediate_size=_positive(config, size),
        is_renormalized=is_renormalized,
        names=names,
    )
    if experts.top_k > experts.num:
        raise ModelInvalid(f"{experts.top_k} experts a token, and there are {experts.num}")
    return experts


_FULL, _SLIDING = "full_attention", "sliding_attention"
_HF_WINDOW: Final = 4096  # transformers' defaults, where a family knows windows at all
_HF_MAX_WINDOW_LAYERS: Final = 28


def _hf_windows(
    config: Metadata, family: str, num_layers: int, max_positions: int
) -> tuple[int | None, ...]:
    """A window no context can leave changes nothing."""
    window = _hf_window(config, family)
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = _hf_default_kinds(config, family, window, num_layers)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelInvalid(f"layer_types: expected {num_layers}, got {kinds!r}")
    is_free = family.startswith("qwen") and window is not None
    allowed = {_FULL, _SLIDING} if is_free else {_FULL if window is None else _SLIDING}
    for kind in kinds:
        if kind not in allowed:
            raise ModelUnsupported(f"layer_types: {kind!r} is not supported")
    if window is None or window >= max_positions or _SLIDING not in kinds:
        return ()
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _hf_window(config: Metadata, family: str) -> int | None:
    """Qwen states a window and a switch; Llama has none."""
    if family.startswith("qwen") and not config.get("use_sliding_window"):
        return None
    default = None if family in ("llama", "mixtral") else _HF_WINDOW
    window = config.get("sliding_window", default)
    if window is None:
        return None
    if type(window) is not int or window < 1 or family == "llama":
        raise ModelUnsupported(f"sliding_window={window!r} is not supported")
    return window


def _hf_default_kinds(
    config: Metadata, family: str, window: int | None, num_layers: int
) -> list[str]:
    if window is None:
        return [_FULL] * num_layers
    if not family.startswith("qwen"):
        return [_SLIDING] * num_layers
    first = config.get("max_window_layers", _HF_MAX_WINDOW_LAYERS)
    if type(first) is not int:
        raise ModelInvalid(f"max_window_layers={first!r}: expected a whole number")
    return [_SLIDING if layer >= first else _FULL for layer in range(num_layers)]


def _hf_rope(config: Metadata) -> tuple[float, RopeScaling | None]:
    """transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters with both."""
    theta, scaling = _number(config, "rope_theta", 10_000.0), None
    for key in ("rope_parameters", "rope_scaling"):  # the later one counts, as in transformers
        rope = config.get(key)
        if rope is None or rope == {}:
            continue
        if not isinstance(rope, Mapping):
            raise ModelInvalid(f"model metadata: {key}={rope!r} is wrong")
        _refuse_unless(rope, "partial_rotary_factor", (None, 1))
        theta = _number(rope, "rope_theta", theta)
        is_yarn = rope.get("rope_type", rope.get("type")) == "yarn"
        scaling = _hf_yarn(config, rope, theta) if is_yarn else _hf_rope_scaling(rope, key)
    return theta, scaling


def _hf_rope_scaling(rope: Metadata, key: str) -> RopeScaling | None:
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    match rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(_number(rope, "factor"))
        case "llama3":
            scaling = Llama3Scaling(
                factor=_number(rope, "factor"),
                low_freq_factor=_number(rope, "low_freq_factor"),
                high_freq_factor=_number(rope, "high_freq_factor"),
                original_max_positions=_positive(rope, "original_max_position_embeddings"),
            )
            if scaling.low_freq_factor >= scaling.high_freq_factor:
                raise ModelInvalid(f"{key}: low_freq_factor is not below high_freq_factor")
            return scaling
        case _:
            raise ModelUnsupported(f"{key}: rope type {rope_type!r} is not supported")


def _hf_yarn(config: Metadata, rope: Metadata, theta: float) -> YarnScaling:
    """Raises ModelError."""
    for key in ("attn_factor", "extrapolation_factor"):  # others' words, which change the numbers
        _refuse_unless(rope, key, (None, 1))
    original = "original_max_position_embeddings"
    max_positions = _positive(rope, original, _positive(config, "max_position_embeddings"))
    max_positions = _positive(config, original, max_positions)  # transformers prefers it
    default = config["max_position_embeddings"] / max_positions
    factor = float(_checked(rope, "factor", default, lambda v: type(v) in (int, float) and v >= 1))
    scaling = YarnScaling(
        factor=factor,
        attention_factor=_number(rope, "attention_factor", _yarn_attention_factor(rope, factor)),
        theta=theta,
        original_max_positions=max_positions,
        beta_fast=_number(rope, "beta_fast", 32.0),
        beta_slow=_number(rope, "beta_slow", 1.0),
        is_truncated=_checked(rope, "truncate", True, lambda v: type(v) is bool),
    )
    if scaling.beta_fast <= scaling.beta_slow:
        raise ModelInvalid(f"yarn: beta_fast {scaling.beta_fast} is not above beta_slow")
    return scaling


def _yarn_attention_factor(rope: Metadata, factor: float) -> float:
    """As transformers infers it; DeepSeek's two scales cancel where they are equal."""
    of_attention, of_all = (
        float(_checked(rope, key, 0.0, lambda v: type(v) in (int, float) and v >= 0))
        for key in ("mscale", "mscale_all_dim")
    )

    def sharpness(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0

    is_stated = of_attention > 0 and of_all > 0
    return sharpness(of_attention) / sharpness(of_all) if is_stated else sharpness(1.0)


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
