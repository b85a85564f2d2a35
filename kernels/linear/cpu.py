"""The linear as every thread of a team runs it: each takes tiles of outputs as it can.

Nothing is assigned before: a thread whose core also serves another process takes fewer.
"""

from typing import Any, Final

from kernels.linear import integer_tiles, tiles
from kernels.linear.formats import (
    GROUP_SIZE,
    TILE_COLUMNS,
    ActivationFormat,
    LinearSpecialization,
    WeightFormat,
)
from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.function import constant_of, inlined
from kernels.vector_ir.levels import FeatureLevel

# Groups of a tile unpacked at once: [24 * 32 k][32 columns] float32: 96 KiB, in the second cache,
# which is near enough for what is read in order.  The fewer blocks, the less often each row's sums
# are loaded and stored: with many rows, those are out of the first cache each time.
_GROUPS_PER_BLOCK: Final = 24
SCRATCH_BYTES: Final = max(  # of each thread
    _GROUPS_PER_BLOCK * WeightFormat.FLOAT32.group_bytes, integer_tiles.SCRATCH_BYTES
)

# From this many rows on, unpacking once for all rows beats unpacking in every tile of rows.
_MIN_ROWS_TO_UNPACK: Final = {
    FeatureLevel.AVX512_VNNI: 33,
    FeatureLevel.AVX512: 33,
    FeatureLevel.AVX2: 7,
    FeatureLevel.PORTABLE: 7,
}


def min_rows_to_unpack(spec: LinearSpecialization) -> int:
    is_integer = spec.activation_format is ActivationFormat.INT8
    if is_integer or spec.weight_format is WeightFormat.FLOAT32:
        return 1 << 62
    return _MIN_ROWS_TO_UNPACK[spec.level]


_min_rows_to_unpack = constant_of("min_rows_to_unpack", min_rows_to_unpack)
takes_codes = constant_of(  # 1: x is quantized, 0: it is float32
    "takes_codes", lambda spec: int(spec.activation_format is ActivationFormat.INT8)
)
_x_group_bytes = constant_of("x_group_bytes", lambda spec: spec.activation_format.group_bytes)


@inlined
def linear(
    spec: Any,  # a LinearSpecialization
    num_threads: int,
    weight: int,  # address of packed tiles
    num_tiles: int,
    num_groups: int,
    x: int,  # address of [num_rows, num_groups * 32], float32 or quantized as spec says
    num_rows: int,
    y: int,  # address of float32 [num_rows, y_stride / 4], of which num_tiles * 32 are written
    y_stride: int,  # bytes
    stage: int,  # of this call alone
    scratch: int,  # address of this thread's SCRATCH_BYTES
) -> None:
    """y = x W^T; rows of x are contiguous."""
    tile_bytes = num_groups * tiles.group_bytes(spec)
    x_stride = num_groups * _x_group_bytes(spec)
    # The more rows, the longer a tile: who finishes first should not have to wait for long.
    count = max(1, num_tiles // (num_threads * SHARES_PER_THREAD * max(1, num_rows)))
    num_done = 0
    first = take(spec, stage, count)
    while first < num_tiles:
        last = min(first + count, num_tiles)
        for tile in range(first, last):
            _one_tile(
                spec, weight + tile * tile_bytes, x, x_stride, num_groups,
                y + tile * TILE_COLUMNS * 4, y_stride, num_rows, scratch,
            )  # fmt: skip
        num_done += last - first
        first = take(spec, stage, count)
    finish(spec, stage, num_done, num_tiles)


@inlined
def _one_tile(
    spec: Any,
    weights: int,
    x: int,
    x_stride: int,
    num_groups: int,
    y: int,
    y_stride: int,
    num_rows: int,
    scratch: int,
) -> None:
    if num_rows < _min_rows_to_unpack(spec):
        tiles.direct_rows(spec, weights, x, x_stride, num_groups, y, y_stride, num_rows, scratch)
    else:
        _unpacked_rows(spec, weights, x, x_stride, num_groups, y, y_stride, num_rows, scratch)


@inlined
def _unpacked_rows(
    spec: Any,
    weights: int,
    x: int,
    x_stride: int,
    num_groups: int,
    y: int,
    y_stride: int,
    num_rows: int,
    scratch: int,
) -> None:
    """A few groups at a time: unpacked once, then multiplied with all rows."""
    for first in range(0, num_groups, _GROUPS_PER_BLOCK):
        count = min(_GROUPS_PER_BLOCK, num_groups - first)
        tiles.unpack_groups(spec, weights + first * tiles.group_bytes(spec), scratch, count)
        tiles.unpacked_rows(
            spec,
            scratch,
            x + first * GROUP_SIZE * 4,
            x_stride,
            count,
            y,
            y_stride,
            num_rows,
            1 if first > 0 else 0,
        )
