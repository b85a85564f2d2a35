"""The definition: packed weights as float32, and the product in plain PyTorch."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.linear.formats import (
    GROUP_SIZE,
    TILE_COLUMNS,
    ActivationFormat,
    WeightFormat,
    nibble_k,
)
from kernels.linear.packing import PackedWeight
from kernels.quantize.reference import dequantize_reference, quantize_reference

Array = npt.NDArray[Any]


def linear_reference(
    x: torch.Tensor,
    weight: PackedWeight,
    activation_format: ActivationFormat = ActivationFormat.FLOAT32,
) -> torch.Tensor:
    """y = x W^T, float32; x as it is after the activation format.

    x:      [num_tokens, in_features]  float32
    return: [num_tokens, out_features] float32
    """
    if activation_format is ActivationFormat.INT8:
        x = dequantize_reference(*quantize_reference(x))
    return torch.nn.functional.linear(x, torch.from_numpy(unpack(weight)))


def unpack(weight: PackedWeight) -> npt.NDArray[np.float32]:
    """[out_features, in_features]; equal, bit for bit, to what the file's format defines."""
    tiles = _PLAIN[weight.weight_format](weight.storage)  # [tiles, groups, 32 k, 32 columns]
    rows = tiles.transpose(0, 3, 1, 2).reshape(-1, weight.in_features)
    return np.ascontiguousarray(rows[: weight.out_features])


def _float32(storage: Array) -> Array:
    return storage.view(np.float32).reshape(*storage.shape[:2], GROUP_SIZE, TILE_COLUMNS)


def _bfloat16(storage: Array) -> Array:
    bits = storage.view(np.uint16).reshape(*storage.shape[:2], GROUP_SIZE, TILE_COLUMNS)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _q8_0(storage: Array) -> Array:
    codes = storage[..., WeightFormat.Q8_0.codes_offset_bytes :].view(np.int8)
    by_k = codes.reshape(*codes.shape[:2], 8, TILE_COLUMNS, 4).swapaxes(3, 4)
    values = by_k.reshape(*codes.shape[:2], GROUP_SIZE, TILE_COLUMNS).astype(np.float32)
    return values * _halves(storage, 0)


def _q4_0(storage: Array) -> Array:
    return (_nibbles(storage, WeightFormat.Q4_0) - np.float32(8)) * _halves(storage, 0)


def _q4_1(storage: Array) -> Array:
    codes = _nibbles(storage, WeightFormat.Q4_1)
    return codes * _halves(storage, 0) + _halves(storage, 2 * TILE_COLUMNS)


def _halves(storage: Array, offset_bytes: int) -> Array:
    """[tiles, groups, 1, 32 columns]."""
    bits = storage[..., offset_bytes : offset_bytes + 2 * TILE_COLUMNS]
    return bits.view(np.float16).astype(np.float32)[:, :, None, :]


def _nibbles(storage: Array, weight_format: WeightFormat) -> Array:
    words = storage[..., weight_format.codes_offset_bytes :].view(np.uint32)
    words = words.reshape(*words.shape[:2], 4, TILE_COLUMNS)
    values = np.empty((*words.shape[:2], GROUP_SIZE, TILE_COLUMNS), np.float32)
    for word in range(4):
        for nibble in range(8):
            values[:, :, nibble_k(word, nibble)] = (words[:, :, word] >> (4 * nibble)) & 15
    return values


_PLAIN = {
    WeightFormat.FLOAT32: _float32,
    WeightFormat.BFLOAT16: _bfloat16,
    WeightFormat.Q4_0: _q4_0,
    WeightFormat.Q4_1: _q4_1,
    WeightFormat.Q8_0: _q8_0,
}
