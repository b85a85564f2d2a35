"""A low-rank adapter as PEFT keeps it: ``adapter_config.json`` and ``adapter_model.safetensors``.

Plain numpy.  What would change the numbers and is not computed here is refused by name.
Source: Hu et al. 2021, "LoRA"; https://huggingface.co/docs/peft/developer_guides/checkpoint.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from contracts.errors import UNDECODABLE
from replica.errors import ModelInvalid, ModelNotFound, ModelUnsupported
from replica.model.config import LlamaConfig
from replica.model.safetensors_file import SafetensorsFile, open_safetensors
from replica.model.tensor_source import Floats

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_TENSOR: Final = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>0|[1-9][0-9]{0,4})\."
    r"(?P<module>[a-z_]+\.[a-z_]+)\.lora_(?P<side>[AB])\.weight"
)
# Of the regular expressions that PEFT takes for ends of modules' names: names, as it writes them.
_PATTERN: Final = re.compile(r"\^?[A-Za-z0-9_]+(?:\\?\.[A-Za-z0-9_]+)*")
# What says how it was trained, or where its tensors are: they are where they are.
_IMMATERIAL: Final = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
})  # fmt: skip
# What else PEFT's LoRA can be and what of it leaves the numbers as they are; of what is in none of
# these, what says nothing.
_SAYS_NOTHING: Final[tuple[object, ...]] = (None, False, [], {})
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "alora_invocation_tokens": (None,),
    "bias": (None, "none"),
    "fan_in_fan_out": (None, False),
    # Others begin from a base model that was changed with them.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    "layer_replication": (None,),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_dora": (None, False),
    "use_qalora": (None, False),
}


class _Settings(msgspec.Struct, frozen=True):
    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None  # these two by _PATTERN
    alpha_pattern: dict[str, float] | None = None

    def scale(self, module: str, rank: int) -> float:
        """Raises ModelInvalid for another rank than is said here."""
        expected = _by_pattern(self.rank_pattern or {}, module, self.r)
        if rank != expected or rank < 1:
            raise ModelInvalid(f"{module}: its rank is {rank}, {_CONFIG} says {expected}")
        alpha: float = _by_pattern(self.alpha_pattern or {}, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


@dataclass(frozen=True, slots=True)
class LowRank:
    """Added to a matrix: expand @ shrink."""

    shrink: Floats  # [rank, in]
    expand: Floats  # [out, rank], its strength included

    @property
    def rank(self) -> int:
        return len(self.shrink)


@dataclass(frozen=True, slots=True)
class Adapter:
    digest: str  # of all that decides its numbers
    changes: Mapping[tuple[int, str], LowRank]  # by layer and module, such as "mlp.up_proj"


def read_adapter(folder: Path, model: LlamaConfig) -> Adapter:
    """Raises ModelError."""
    content, weights = (_content(folder, name) for name in (_CONFIG, _WEIGHTS))
    settings = _settings(content)
    file = open_safetensors(folder / _WEIGHTS)
    sides = _sides(file)
    changes = {
        (layer, module): _change(file, settings, model, (layer, module), sides)
        for layer, module in sorted({place for place, _ in sides})
    }
    digest = hashlib.sha256(hashlib.sha256(content).digest() + hashlib.sha256(weights).digest())
    return Adapter(digest.hexdigest(), changes)


def _content(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ModelNotFound(f"{folder} has no {name}") from exc
    except OSError as exc:
        raise ModelNotFound(str(exc)) from exc


def _settings(content: bytes) -> _Settings:
    try:
        stated = msgspec.json.decode(content, type=dict[str, Any])
        settings = msgspec.json.decode(content, type=_Settings)
    except UNDECODABLE as exc:
        raise ModelInvalid(f"{_CONFIG}: {exc}") from exc
    for pattern in {*(settings.rank_pattern or ()), *(settings.alpha_pattern or ())}:
        if _PATTERN.fullmatch(pattern) is None:
            raise ModelUnsupported(f"{_CONFIG}: the pattern {pattern!r} is not a module's name")
    read = _IMMATERIAL.union(_Settings.__struct_fields__)
    for key in sorted((stated.keys() | _NEUTRAL.keys()) - read):
        value = stated.get(key)
        accepted = _NEUTRAL.get(key, _SAYS_NOTHING)
        if not any(value is a or (value == a and type(value) is type(a)) for a in accepted):
            raise ModelUnsupported(f"{_CONFIG}: {key}={value!r} is not supported")
    return settings


def _sides(file: SafetensorsFile) -> Mapping[tuple[tuple[int, str], str], str]:
    """Tensors' names by place and side: A, which shrinks, or B."""
    sides = {}
    for name in file.entries:
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise ModelUnsupported(f"{_WEIGHTS}: tensor {name!r} is not of what is adapted here")
        sides[(int(found["layer"]), found["module"]), found["side"]] = name
    if not sides:
        raise ModelInvalid(f"{_WEIGHTS}: there is no tensor in it: it would change nothing")
    return sides


def _change(
    file: SafetensorsFile,
    settings: _Settings,
    model: LlamaConfig,
    place: tuple[int, str],
    sides: Mapping[tuple[tuple[int, str], str], str],
) -> LowRank:
    layer, module = place
    sizes = module_sizes(model).get(module)
    if sizes is None or layer >= model.num_layers:
        raise ModelUnsupported(f"{_WEIGHTS}: the model has no {module} in a layer {layer}")
    try:
        shrink, expand = (file.floats(sides[place, side]) for side in "AB")
    except KeyError as exc:
        raise ModelInvalid(f"{_WEIGHTS}: {module} of layer {layer} lacks a side") from exc
    out_features, in_features = sizes
    rank = len(shrink)
    if shrink.shape != (rank, in_features) or expand.shape != (out_features, rank):
        raise ModelInvalid(
            f"{_WEIGHTS}: {module} of layer {layer} is {expand.shape} by {shrink.shape}, "
            f"the model's matrix {out_features} by {in_features}"
        )
    scale = settings.scale(f"model.layers.{layer}.{module}", rank)
    with np.errstate(over="ignore", invalid="ignore"):  # looked at below
        change = LowRank(shrink, expand * np.float32(scale))
    if not (np.isfinite(change.shrink).all() and np.isfinite(change.expand).all()):
        raise ModelInvalid(
            f"{_WEIGHTS}: {module} of layer {layer} has numbers that are not finite, "
            f"or not with the strength of {scale:g} that {_CONFIG} says"
        )
    return change


def module_sizes(model: LlamaConfig) -> Mapping[str, tuple[int, int]]:
    """(out, in) of each of a layer's matrices, as checkpoints name and divide them."""
    hidden, intermediate = model.hidden_size, model.intermediate_size
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
    }
    if model.experts is not None:  # which no adapter changes here
        return attention
    return attention | {
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """As PEFT finds them: a pattern stands for the end of a name, the first one wins."""
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default
