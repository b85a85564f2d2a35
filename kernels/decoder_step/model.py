"""What a step computes with: shape, packed weights, and the cache of keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS
from kernels.linear.packing import PackedWeight
from kernels.paged_attention.formats import KvFormat
from kernels.rms_norm.cpu import ROW_MULTIPLE

Vector = npt.NDArray[np.float32]


class DecoderShape(NamedTuple):
    """A tuple, because compiled code reads it as one."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads


def spread_row(size: int) -> int:
    """Elements of float32 from one row of ``size`` to the next, so that rows share no cache set.

    A tile writes a few columns of all rows, again and again: an odd number of cache lines apart,
    they fall on different sets; by a multiple of 4 KiB, all on the same.
    """
    return (size + 15) // 16 // 2 * 32 + 16


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Vector  # [hidden]
    qkv: PackedWeight  # [(heads + 2 * kv_heads) * head_dim, hidden]: q, then k, then v
    output: PackedWeight  # [hidden, heads * head_dim]
    post_norm: Vector  # [hidden]
    gate_up: PackedWeight  # [2 * intermediate, hidden]: gate, then up
    down: PackedWeight  # [hidden, intermediate]
    window: int | None = None  # positions a row sees, its own the last; None: all before it


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The matrices of all layers have one format; embedding and lm_head may each have another."""

    embedding: PackedWeight  # [vocab, hidden]
    layers: Sequence[LayerWeights]
    final_norm: Vector  # [hidden]
    lm_head: PackedWeight  # [vocab, hidden]; the embedding itself when the model ties them
    cos: Vector  # [max_positions, head_dim / 2]
    sin: Vector

    def check(self, shape: DecoderShape) -> None:
        """Raises ValueError for what the step could not compute."""
        if len(self.layers) != shape.num_layers:
            raise ValueError(f"expected {shape.num_layers} layers, got {len(self.layers)}")
        check_sizes(shape)
        hidden, attended = shape.hidden_size, shape.num_heads * shape.head_dim
        for layer in self.layers:
            _check_matrix("qkv", layer.qkv, shape.qkv_size, hidden)
            _check_matrix("output", layer.output, hidden, attended)
            _check_matrix("gate_up", layer.gate_up, 2 * shape.intermediate_size, hidden)
            _check_matrix("down", layer.down, hidden, shape.intermediate_size)
        _check_matrix("embedding", self.embedding, shape.vocab_size, hidden)
        _check_matrix("lm_head", self.lm_head, shape.vocab_size, hidden)
        formats = {
            matrix.weight_format
            for layer in self.layers
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
        }
        if len(formats) != 1:
            raise ValueError(f"expected one weight format in all layers, got {sorted(formats)}")


def check_sizes(shape: DecoderShape) -> None:
    """Rows are whole vectors, matrices whole tiles and groups.  Raises ValueError."""
    sizes = {
        "hidden size": (shape.hidden_size, ROW_MULTIPLE),
        "intermediate size": (shape.intermediate_size, ROW_MULTIPLE),
        "size of all query heads": (shape.num_heads * shape.head_dim, GROUP_SIZE),
        "size of all heads": (shape.qkv_size, TILE_COLUMNS),
    }
    for name, (size, multiple) in sizes.items():
        if size % multiple:
            raise ValueError(f"{name}: expected a multiple of {multiple}, got {size}")


def _check_matrix(name: str, weight: PackedWeight, out_features: int, in_features: int) -> None:
    if (weight.out_features, weight.in_features) != (out_features, in_features):
        raise ValueError(
            f"{name}: expected [{out_features}, {in_features}], "
            f"got [{weight.out_features}, {weight.in_features}]"
        )


class KvCache:
    """Keys and values of all layers; see ``kernels.paged_attention.formats`` for the layout.

    Memory is the operating system's until a block is written.
    """

    def __init__(
        self, shape: DecoderShape, kv_format: KvFormat, num_blocks: int, block_size: int
    ) -> None:
        self.kv_format = kv_format
        self.num_blocks = num_blocks
        self.block_size = block_size
        block_bytes = shape.num_kv_heads * block_size * kv_format.head_bytes(shape.head_dim)
        size = (shape.num_layers, 2, num_blocks, block_bytes)
        self._storage: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)

    @property
    def size_bytes(self) -> int:
        return self._storage.nbytes

    def addresses(self, layer: int) -> tuple[int, int]:
        """Of the layer's keys and values."""
        keys, values = self._storage[layer]
        return int(keys.ctypes.data), int(values.ctypes.data)

    def block_bytes(self) -> Sequence[npt.NDArray[np.uint8]]:
        """Each layer's keys and values, ``[num_blocks, bytes]``: views, to move blocks by.

        All bits set are not a number, in each of the formats.
        """
        return [part for layer in self._storage for part in layer]
