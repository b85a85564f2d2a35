"""Weights of a Llama for the compiled step: in the file's own codes where the kernels know them.

A layer at a time goes from the file into tiles; no other copy stays.  What the kernels do not know
(float16, GGUF's K-quants, layers of several formats) becomes float32, as it would for torch; where
a precision asks for it, layers are rounded to another format.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernels.decoder_step.model import DecoderShape, DecoderWeights, LayerWeights
from kernels.linear.formats import (
    GROUP_SIZE,
    INTEGER_FORMATS,
    TILE_COLUMNS,
    ActivationFormat,
    WeightFormat,
)
from kernels.linear.packing import PackedWeight, pack, pack_int8_per_channel, pack_stored
from replica.engine.messages import Precision
from replica.errors import ModelInvalid
from replica.model.config import LlamaConfig
from replica.model.rotary_tables import rotary_tables
from replica.model.tensor_source import (
    ReportProgress,
    TensorSource,
    assembles_tied,
    load_checked,
    refuse_unknown,
)

_ACTIVATION_FORMATS: Final = {
    Precision.EXACT: ActivationFormat.FLOAT32,
    Precision.FAST: ActivationFormat.INT8,
    Precision.INT8: ActivationFormat.INT8,
    Precision.INT8_PER_CHANNEL: ActivationFormat.INT8,
    Precision.BFLOAT16: ActivationFormat.FLOAT32,
}
_EMBEDDING: Final = "model.embed_tokens.weight"
_LM_HEAD: Final = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One matrix of the step: rows of one or several tensors, one after the other."""

    parts: tuple[tuple[str, int], ...]  # (tensor's name, rows)
    in_features: int

    @property
    def names(self) -> Iterator[str]:
        return (name for name, _ in self.parts)

    def size_bytes(self, weight_format: WeightFormat) -> int:
        num_tiles = -(-sum(rows for _, rows in self.parts) // TILE_COLUMNS)
        return num_tiles * (self.in_features // GROUP_SIZE) * weight_format.group_bytes


def shape_of(config: LlamaConfig) -> DecoderShape:
    return DecoderShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
    )


class PackedModel:
    """What packing a model will take, before any weight is read."""

    def __init__(
        self, source: TensorSource, config: LlamaConfig, precision: Precision = Precision.EXACT
    ) -> None:
        """Raises ModelInvalid for missing tensors, ModelUnsupported for unknown ones.

        precision: of the layers.  Embedding and output matrix stay as shipped: of all matrices
        their rounding costs the most quality.
        """
        names = set(source.names())
        refuse_unknown(names, config)
        self._source = source
        self._config = config
        self._is_tied = assembles_tied(config, names)
        vocab, hidden = config.vocab_size, config.hidden_size
        self._embedding = _Matrix(((_EMBEDDING, vocab),), hidden)
        self._lm_head = _Matrix(((_LM_HEAD, vocab),), hidden)
        self._layers = [_layer_matrices(config, index) for index in range(config.num_layers)]
        shipped = _common_format(source, [m for layer in self._layers for m in layer])
        self._precision = precision
        self.layer_format = _layer_format(precision, shipped)
        self.activation_format = _ACTIVATION_FORMATS[precision]

    @property
    def size_bytes(self) -> int:
        """Of all packed matrices."""
        layers = sum(m.size_bytes(self.layer_format) for layer in self._layers for m in layer)
        ends = [self._embedding] if self._is_tied else [self._embedding, self._lm_head]
        return layers + sum(m.size_bytes(_common_format(self._source, [m])) for m in ends)

    def load(self, report_progress: ReportProgress) -> DecoderWeights:
        """Raises ModelInvalid or ValueError for misshapen tensors."""
        layers = []
        for index in range(self._config.num_layers):
            layers.append(self._layer(index))
            report_progress(len(layers) / self._config.num_layers)
        embedding = self._pack(self._embedding, _common_format(self._source, [self._embedding]))
        lm_head = embedding
        if not self._is_tied:
            lm_head = self._pack(self._lm_head, _common_format(self._source, [self._lm_head]))
        cos, sin = rotary_tables(self._config)
        return DecoderWeights(
            embedding, layers, self._vector("model.norm.weight"), lm_head, cos, sin
        )

    def _layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        qkv, output, gate_up, down = (self._pack_layer(matrix) for matrix in self._layers[index])
        return LayerWeights(
            input_norm=self._vector(prefix + "input_layernorm.weight"),
            qkv=qkv,
            output=output,
            post_norm=self._vector(prefix + "post_attention_layernorm.weight"),
            gate_up=gate_up,
            down=down,
            window=self._config.window(index),
        )

    def _pack_layer(self, matrix: _Matrix) -> PackedWeight:
        if self._precision is Precision.INT8_PER_CHANNEL:
            return pack_int8_per_channel(self._rows(matrix, self._source.load))
        return self._pack(matrix, self.layer_format)

    def _pack(self, matrix: _Matrix, weight_format: WeightFormat) -> PackedWeight:
        if all(self._source.stored_format(name) == weight_format for name in matrix.names):
            return pack_stored(self._rows(matrix, self._source.load_stored), weight_format)
        return pack(self._rows(matrix, self._source.load), weight_format)

    def _rows(self, matrix: _Matrix, load: Callable[[str], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        rows = [load(name) for name in matrix.names]
        for (name, num_rows), part in zip(matrix.parts, rows, strict=True):
            if part.ndim != 2 or len(part) != num_rows:
                raise ModelInvalid(f"tensor {name}: expected {num_rows} rows, got {part.shape}")
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _vector(self, name: str) -> npt.NDArray[np.float32]:
        return load_checked(self._source, name, (self._config.hidden_size,))


def _layer_format(precision: Precision, shipped: WeightFormat) -> WeightFormat:
    match precision:
        case Precision.EXACT:
            return shipped
        case Precision.FAST:
            return shipped if shipped in INTEGER_FORMATS else WeightFormat.Q8_0
        case Precision.INT8 | Precision.INT8_PER_CHANNEL:
            return WeightFormat.Q8_0
        case Precision.BFLOAT16:
            return WeightFormat.BFLOAT16
        case Precision.FLOAT8:
            raise ValueError(f"{precision} is a GPU's")


def _layer_matrices(config: LlamaConfig, index: int) -> tuple[_Matrix, ...]:
    """qkv, output, gate_up, down."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def part(module: str, num_rows: int) -> tuple[str, int]:
        return f"model.layers.{index}.{module}.weight", num_rows

    q, output = part("self_attn.q_proj", q_size), part("self_attn.o_proj", hidden)
    k, v = part("self_attn.k_proj", kv_size), part("self_attn.v_proj", kv_size)
    gate, up = part("mlp.gate_proj", intermediate), part("mlp.up_proj", intermediate)
    down = part("mlp.down_proj", hidden)
    return (
        _Matrix((q, k, v), hidden),
        _Matrix((output,), q_size),
        _Matrix((gate, up), hidden),
        _Matrix((down,), intermediate),
    )


def _common_format(source: TensorSource, matrices: Sequence[_Matrix]) -> WeightFormat:
    formats = {source.stored_format(name) for matrix in matrices for name in matrix.names}
    if len(formats) == 1 and formats <= set(WeightFormat):
        return WeightFormat(*formats)
    return WeightFormat.FLOAT32
