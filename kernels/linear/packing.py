"""Weights from a file's own layout into tiles.  Codes and scales are moved, never changed."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS, WeightFormat, nibble_k

Array = npt.NDArray[Any]

_CACHE_LINE_BYTES: Final = 64
_MAX_Q8_0_SCALE: Final = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """[out_features, in_features], out padded with zeros to whole tiles."""

    weight_format: WeightFormat
    out_features: int
    in_features: int
    storage: npt.NDArray[np.uint8]  # [num_tiles, num_groups, group_bytes], on a cache line

    @property
    def padded_out_features(self) -> int:
        return _round_up(self.out_features, TILE_COLUMNS)

    @property
    def address(self) -> int:
        return int(self.storage.ctypes.data)


def pack(weight: npt.NDArray[np.float32], weight_format: WeightFormat) -> PackedWeight:
    """weight: [out_features, in_features]; rounded as the format needs.

    Raises ValueError for formats that nothing is rounded to here, and for weights that none of
    theirs is near: not a number, infinite, or too large.
    """
    match weight_format:
        case WeightFormat.FLOAT32:
            return pack_float32(weight)
        case WeightFormat.BFLOAT16:
            return pack_bfloat16(_to_bfloat16(weight))
        case WeightFormat.Q8_0:
            return pack_gguf(_to_q8_0(weight, _group_maxima(weight)), weight_format)
    raise ValueError(f"nothing is rounded to {weight_format}")


def pack_int8_per_channel(weight: npt.NDArray[np.float32]) -> PackedWeight:
    """weight: [out_features, in_features]; as q8_0 in which all groups of an output share a scale.

    Raises ValueError like ``pack``.
    """
    maxima = _group_maxima(weight)
    return pack_gguf(
        _to_q8_0(weight, np.broadcast_to(maxima.max(1, keepdims=True), maxima.shape)),
        WeightFormat.Q8_0,
    )


def pack_stored(rows: Array, weight_format: WeightFormat) -> PackedWeight:
    """rows: as a file holds them: float32, bfloat16 as uint16, or bytes of blocks."""
    if weight_format is WeightFormat.FLOAT32:
        return pack_float32(rows)
    if weight_format is WeightFormat.BFLOAT16:
        return pack_bfloat16(rows)
    return pack_gguf(rows, weight_format)


def pack_float32(weight: npt.NDArray[np.float32]) -> PackedWeight:
    """weight: [out_features, in_features]."""
    return _pack_plain(np.asarray(weight, np.float32), WeightFormat.FLOAT32)


def pack_bfloat16(bits: npt.NDArray[np.uint16]) -> PackedWeight:
    """bits: [out_features, in_features], the upper half of each float32."""
    return _pack_plain(np.asarray(bits, np.uint16), WeightFormat.BFLOAT16)


def pack_gguf(blocks: npt.NDArray[np.uint8], weight_format: WeightFormat) -> PackedWeight:
    """blocks: [out_features, bytes of a row], as in the file."""
    if weight_format is WeightFormat.Q8_0:
        return _pack_q8_0(blocks)
    return _pack_q4(blocks, weight_format)


def _pack_plain(weight: Array, weight_format: WeightFormat) -> PackedWeight:
    out_features, in_features = weight.shape
    packed = _allocate(weight_format, out_features, in_features)
    tiles = _tiles(weight).reshape(-1, TILE_COLUMNS, in_features // GROUP_SIZE, GROUP_SIZE)
    packed.storage.view(weight.dtype).reshape(tiles.shape[0], -1, GROUP_SIZE, TILE_COLUMNS)[:] = (
        tiles.transpose(0, 2, 3, 1)
    )
    return packed


def _pack_q8_0(blocks: npt.NDArray[np.uint8]) -> PackedWeight:
    groups = _tiled_blocks(blocks, 2 + GROUP_SIZE)
    packed = _allocate(WeightFormat.Q8_0, len(blocks), groups.shape[2] * GROUP_SIZE)
    _copy_halves(packed, groups[..., 0:2], 0)
    codes = packed.storage[..., WeightFormat.Q8_0.codes_offset_bytes :]
    words = groups[..., 2:].reshape(*groups.shape[:3], 8, 4)
    codes.reshape(*codes.shape[:2], 8, TILE_COLUMNS, 4)[:] = words.transpose(0, 2, 3, 1, 4)
    return packed


def _pack_q4(blocks: npt.NDArray[np.uint8], weight_format: WeightFormat) -> PackedWeight:
    """In the file, byte i holds k = i in its low nibble and k = i + 16 in its high one."""
    num_scale_bytes = 4 if weight_format is WeightFormat.Q4_1 else 2
    groups = _tiled_blocks(blocks, num_scale_bytes + GROUP_SIZE // 2)
    packed = _allocate(weight_format, len(blocks), groups.shape[2] * GROUP_SIZE)
    for start in range(0, num_scale_bytes, 2):
        _copy_halves(packed, groups[..., start : start + 2], start * TILE_COLUMNS)
    halves = groups[..., num_scale_bytes:]
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1)  # [tiles, 32, groups, 32 k]
    words = packed.storage[..., weight_format.codes_offset_bytes :].view(np.uint32)
    words = words.reshape(*words.shape[:2], 4, TILE_COLUMNS)
    for word in range(4):
        for nibble in range(8):
            code = codes[..., nibble_k(word, nibble)].transpose(0, 2, 1).astype(np.uint32)
            words[:, :, word] |= code << np.uint32(4 * nibble)
    return packed


def _copy_halves(packed: PackedWeight, halves: Array, offset_bytes: int) -> None:
    """halves: [tiles, 32 columns, groups, 2 bytes of a float16]."""
    target = packed.storage[..., offset_bytes : offset_bytes + 2 * TILE_COLUMNS]
    target.reshape(*target.shape[:2], TILE_COLUMNS, 2)[:] = halves.transpose(0, 2, 1, 3)


def _tiled_blocks(blocks: npt.NDArray[np.uint8], block_bytes: int) -> Array:
    """[tiles, 32 columns, groups, block_bytes]."""
    if blocks.ndim != 2 or blocks.shape[1] % block_bytes:
        raise ValueError(f"expected rows of {block_bytes}-byte blocks, got shape {blocks.shape}")
    return _tiles(blocks).reshape(-1, TILE_COLUMNS, blocks.shape[1] // block_bytes, block_bytes)


def _tiles(rows: Array) -> Array:
    """rows, followed by zeros up to a whole number of tiles."""
    padding = _round_up(len(rows), TILE_COLUMNS) - len(rows)
    return np.pad(rows, ((0, padding), (0, 0))) if padding else rows


def _allocate(weight_format: WeightFormat, out_features: int, in_features: int) -> PackedWeight:
    """Zeros."""
    if in_features % GROUP_SIZE or in_features == 0:
        raise ValueError(f"expected a multiple of {GROUP_SIZE} inputs, got {in_features}")
    num_tiles = _round_up(out_features, TILE_COLUMNS) // TILE_COLUMNS
    shape = (num_tiles, in_features // GROUP_SIZE, weight_format.group_bytes)
    size = num_tiles * shape[1] * weight_format.group_bytes
    raw = np.zeros(size + _CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    storage = raw[start : start + size].reshape(shape)
    return PackedWeight(weight_format, out_features, in_features, storage)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _to_bfloat16(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    # Before rounding: a carry would turn some of those that are no number into zero.
    if not np.isfinite(weight).all():
        raise ValueError("weights that are not finite cannot be rounded to bfloat16")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _group_maxima(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[out_features, groups, 1]."""
    groups = np.asarray(weight, np.float32).reshape(len(weight), -1, GROUP_SIZE)
    return np.abs(groups).max(-1, keepdims=True)  # type: ignore[no-any-return]


def _to_q8_0(weight: npt.NDArray[np.float32], maxima: Array) -> npt.NDArray[np.uint8]:
    """Blocks.  maxima: [out_features, groups, 1], what becomes 127."""
    groups = np.asarray(weight, np.float32).reshape(len(weight), -1, GROUP_SIZE)
    scales = (maxima / np.float32(127)).astype(np.float32)
    if not (scales <= _MAX_Q8_0_SCALE).all():  # nor is it of what is no number
        raise ValueError("weights that are not finite, or too large, cannot be rounded to q8_0")
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.rint(groups * inverse).astype(np.int8)
    blocks = np.concatenate([scales.astype(np.float16).view(np.int8), codes], axis=-1)
    return blocks.view(np.uint8).reshape(len(weight), -1)
