"""What a decoder's config.json says of its size: parameters, and the KV cache of a token.

Knows decoders with grouped-query attention and a gated MLP, dense or with experts.  Other
families are refused: a parameter count that is nearly right is worse than none.
"""

import math
import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE
from pandal.errors import BadOption
from pandal.planner.figure import Figure, Unit
from pandal.planner.precision import Precision

_FAMILIES = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3"})

Size = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class Config(msgspec.Struct, frozen=True):
    """The members of config.json that decide a size."""

    model_type: str
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    num_key_value_heads: Size | None = None  # None: as many as attention heads
    head_dim: Size | None = None  # None: hidden_size / num_attention_heads
    tie_word_embeddings: bool = False
    num_local_experts: Size = 1
    num_experts_per_tok: Size = 1
    max_position_embeddings: Size = 4096


@dataclass(frozen=True)
class ModelShape:
    name: str
    config: Config

    @property
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def num_kv_heads(self) -> int:
        given = self.config.num_key_value_heads
        return self.config.num_attention_heads if given is None else given

    @property
    def head_dim(self) -> int:
        given = self.config.head_dim
        if given is not None:
            return given
        return self.config.hidden_size // self.config.num_attention_heads

    def kv_bytes_per_token(self, precision: Precision) -> float:
        """Keys and values."""
        values = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return values * precision.bytes_per_value

    @cached_property
    def num_parameters(self) -> int:
        num_in_experts = self.config.num_local_experts * self.num_parameters_per_expert
        return self._num_shared_parameters + num_in_experts

    @cached_property
    def num_active_parameters(self) -> int:
        """Those that one token passes through."""
        num_in_experts = self.config.num_experts_per_tok * self.num_parameters_per_expert
        return self._num_shared_parameters + num_in_experts

    @property
    def num_multiplied_parameters(self) -> int:
        """Active ones without the input embedding, of which a token only looks up its own row."""
        return self.num_active_parameters - self._num_looked_up_parameters

    def num_read_parameters(self, num_tokens: float) -> float:
        """Expected to be read for one step of ``num_tokens``, if the router chooses evenly."""
        config = self.config
        untouched: float = 1 - config.num_experts_per_tok / config.num_local_experts
        num_experts = config.num_local_experts * (1 - math.pow(untouched, num_tokens))
        always = self._num_shared_parameters - self._num_looked_up_parameters
        return always + num_experts * self.num_parameters_per_expert

    @property
    def num_parameters_per_expert(self) -> int:
        """Of one expert, or of the one MLP, over all layers: gate, up and down projections."""
        return self.num_layers * 3 * self.config.hidden_size * self.config.intermediate_size

    @property
    def _num_looked_up_parameters(self) -> int:
        """None where the output matrix is the same one: it is multiplied."""
        config = self.config
        return 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size

    @property
    def _num_shared_parameters(self) -> int:
        config = self.config
        hidden = config.hidden_size
        query = config.num_attention_heads * self.head_dim
        key_value = self.num_kv_heads * self.head_dim
        attention = 2 * hidden * query + 2 * hidden * key_value
        if config.model_type == "qwen2":
            attention += query + 2 * key_value  # biases
        if config.model_type == "qwen3":
            attention += 2 * self.head_dim  # norms of queries and keys
        router = hidden * config.num_local_experts if config.num_local_experts > 1 else 0
        embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
        return embeddings + hidden + self.num_layers * (attention + router + 2 * hidden)


def known_models() -> dict[str, Config]:
    text = resources.files("pandal.planner").joinpath("models.toml").read_text()
    return {name: msgspec.convert(table, Config) for name, table in tomllib.loads(text).items()}


def find_model(name_or_path: str) -> ModelShape:
    """A known name, a config.json, or the folder that holds one.  Raises BadOption."""
    known = known_models()
    for name, config in known.items():
        if name.casefold() == name_or_path.casefold():
            return ModelShape(name, config)
    path = Path(name_or_path).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise BadOption(
            f"--model: {name_or_path!r} is neither a config.json, nor a folder with one, nor one "
            f"of {', '.join(known)}"
        )
    return ModelShape(path.absolute().parent.name, _read_config(path))


def _read_config(path: Path) -> Config:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=Config)
    except UNDECODABLE as exc:
        raise BadOption(f"--model: {path}: {exc}") from exc
    if config.model_type not in _FAMILIES:
        raise BadOption(
            f"--model: {path}: expected a model_type of {', '.join(sorted(_FAMILIES))}, "
            f"got {config.model_type!r}"
        )
    if config.head_dim is None and config.num_attention_heads > config.hidden_size:
        raise BadOption(f"--model: {path}: more attention heads than the hidden size has values")
    if config.num_experts_per_tok > config.num_local_experts:
        raise BadOption(f"--model: {path}: a token passes through more experts than there are")
    return config


def parameters(shape: ModelShape) -> Figure:
    config = shape.config
    rest = shape.num_parameters - config.num_local_experts * shape.num_parameters_per_expert
    return Figure(
        "num_parameters",
        shape.num_parameters,
        Unit.COUNT,
        "layers x 3 x hidden x MLP size x experts + attention, embeddings and norms",
        f"{shape.num_layers} * 3 * {config.hidden_size} * {config.intermediate_size}"
        f" * {config.num_local_experts} + {rest}",
    )


def kv_cache(shape: ModelShape, precision: Precision) -> Figure:
    return Figure(
        "kv_bytes_per_token",
        shape.kv_bytes_per_token(precision),
        Unit.BYTES,
        "2 (K and V) x layers x KV heads x head size x bytes",
        f"2 * {shape.num_layers} * {shape.num_kv_heads} * {shape.head_dim}"
        f" * {precision.bytes_per_value:g}",
    )
