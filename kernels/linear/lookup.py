"""One output's weights out of packed tiles: how a tied embedding is read."""

from typing import Any

from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS, LinearSpecialization
from kernels.linear.tiles import group_bytes, weight_vectors
from kernels.vector_ir.emitter import I32, Emitter, Value
from kernels.vector_ir.function import compiled, emitted


def _emit_column(
    e: Emitter,
    spec: LinearSpecialization,
    tile: Value,
    column: Value,
    num_groups: Value,
    target: Value,  # float32 [num_groups * 32]
) -> None:
    lane = e.builder.trunc(e.builder.srem(column, e.i64(e.lanes)), I32)
    first = e.builder.sub(column, e.builder.sext(lane, column.type))
    with e.loop(num_groups) as group:
        address = e.at(tile, e.times(group, spec.weight_format.group_bytes))
        place = e.at(target, e.times(group, 4 * GROUP_SIZE))
        for k, (vector,) in weight_vectors(e, spec.weight_format, address, first, 1):
            e.store_scalar(e.builder.extract_element(vector, lane), place, 4 * k)


_column = emitted("column", _emit_column)


@compiled
def lookup(
    spec: Any,  # a LinearSpecialization
    weight: int,  # address of packed tiles
    num_groups: int,
    output: int,  # which of the weight's outputs
    target: int,  # address of float32 [num_groups * 32]
) -> None:
    tile = weight + output // TILE_COLUMNS * num_groups * group_bytes(spec)
    _column(spec, tile, output % TILE_COLUMNS, num_groups, target)
