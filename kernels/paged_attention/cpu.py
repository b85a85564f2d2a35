"""Attention of a flat batch: threads take pieces of work from a shared counter.

A piece is one KV head of up to TOKENS_PER_PIECE consecutive positions of one sequence; a decode is
a piece of one position.  Pieces differ in size by orders of magnitude, so none is assigned before.
"""

from typing import Any, Final

from kernels.paged_attention.formats import CHUNK_KEYS, AttentionSpecialization
from kernels.paged_attention.tiles import (
    Layout,
    attend_decode_chunk,
    attend_tile_chunk,
    finish_token,
    rows_of_decode,
    rows_of_tile,
    set_limits,
    start_token,
    tokens_of_tile,
)
from kernels.threads.stage import finish, take
from kernels.vector_ir.function import constant_of, inlined

TILES_PER_PIECE: Final = 4  # keys and values of a chunk are used by all of them while they are near


def tokens_per_piece(spec: AttentionSpecialization) -> int:
    return TILES_PER_PIECE * tokens_of_tile(spec)


def scratch_bytes(spec: AttentionSpecialization) -> int:
    """Of each thread."""
    return _tile_layout(spec).work_bytes + TILES_PER_PIECE * _tile_layout(spec).size_bytes


def _tile_layout(spec: AttentionSpecialization) -> Layout:
    return Layout(rows_of_tile(spec), spec.head_dim)


def _decode_layout(spec: AttentionSpecialization) -> Layout:
    return Layout(rows_of_decode(spec), spec.head_dim)


_head_dim = constant_of("head_dim", lambda spec: spec.head_dim)
_group_size = constant_of("group_size", lambda spec: spec.group_size)
_block_size = constant_of("block_size", lambda spec: spec.block_size)
_block_head_bytes = constant_of("block_head_bytes", lambda spec: spec.block_head_bytes)
_tokens_of_tile = constant_of("tokens_of_tile", tokens_of_tile)
_rows_of_tile = constant_of("rows_of_tile", rows_of_tile)
_tile_bytes = constant_of("tile_bytes", lambda spec: _tile_layout(spec).size_bytes)
_tile_work_bytes = constant_of("tile_work_bytes", lambda spec: _tile_layout(spec).work_bytes)
_tile_limits = constant_of("tile_limits", lambda spec: _tile_layout(spec).limits)
_decode_work_bytes = constant_of("decode_work_bytes", lambda spec: _decode_layout(spec).work_bytes)
_decode_limits = constant_of("decode_limits", lambda spec: _decode_layout(spec).limits)


@inlined
def paged_attention(
    spec: Any,  # an AttentionSpecialization
    q: int,  # address of float32 [num_rows, q_stride_bytes / 4], queries first in a row
    q_stride: int,  # bytes
    output: int,  # address of float32 [num_rows, heads * head_dim]
    keys: int,  # address of one layer's keys
    values: int,
    num_kv_heads: int,
    pieces: Any,  # int64 [num_pieces, 4]: first row, tokens, position of the first, segment
    block_tables: Any,  # int32 [num_segments, max_blocks + 1], see pad_block_tables
    stage: int,  # of this call alone
    scratch: int,  # address of this thread's scratch_bytes
) -> None:
    block_head_bytes = _block_head_bytes(spec)
    group_bytes = _group_size(spec) * _head_dim(spec) * 4
    block_stride = num_kv_heads * block_head_bytes
    num_units = len(pieces) * num_kv_heads
    num_done = 0
    index = take(spec, stage, 1)
    while index < num_units:
        piece = index // num_kv_heads
        head = index % num_kv_heads
        first_row, num_tokens = pieces[piece, 0], pieces[piece, 1]
        position, segment = pieces[piece, 2], pieces[piece, 3]
        blocks = block_tables.ctypes.data + segment * block_tables.shape[1] * 4
        source = q + first_row * q_stride + head * group_bytes
        target = output + (first_row * num_kv_heads + head) * group_bytes
        head_keys = keys + head * block_head_bytes
        head_values = values + head * block_head_bytes
        if num_tokens == 1:
            _attend_one(
                spec,
                source,
                target,
                head_keys,
                head_values,
                block_stride,
                blocks,
                position,
                scratch,
            )
        else:
            _attend_many(
                spec, source, q_stride, target, num_kv_heads * group_bytes, head_keys, head_values,
                block_stride, blocks, position, num_tokens, scratch,
            )  # fmt: skip
        num_done += 1
        index = take(spec, stage, 1)
    finish(spec, stage, num_done, num_units)


@inlined
def _attend_one(
    spec: Any,
    q: int,
    output: int,
    keys: int,
    values: int,
    block_stride: int,
    blocks: int,
    position: int,
    scratch: int,
) -> None:
    num_rows = _group_size(spec)
    state = scratch + _decode_work_bytes(spec)
    start_token(spec, q, state, 0, num_rows)
    for first in range(0, position + 1, CHUNK_KEYS):
        num_keys = min(CHUNK_KEYS, position + 1 - first)
        set_limits(spec, state + _decode_limits(spec), num_keys)
        chunk_blocks = blocks + first // _block_size(spec) * 4
        attend_decode_chunk(
            spec, keys, values, chunk_blocks, block_stride, num_keys, state, scratch
        )
    finish_token(spec, state, 0, num_rows, output)


@inlined
def _attend_many(
    spec: Any,
    q: int,
    q_stride: int,
    output: int,
    output_stride: int,
    keys: int,
    values: int,
    block_stride: int,
    blocks: int,
    position: int,  # of the first token
    num_tokens: int,
    scratch: int,
) -> None:
    """The last tile is filled up with copies of the last token, which nobody reads."""
    num_rows = _rows_of_tile(spec)
    per_tile = _tokens_of_tile(spec)
    states = scratch + _tile_work_bytes(spec)
    num_tiles = (num_tokens + per_tile - 1) // per_tile
    for slot in range(num_tiles * per_tile):
        state = states + slot // per_tile * _tile_bytes(spec)
        first_row = slot % per_tile * _group_size(spec)
        start_token(spec, q + min(slot, num_tokens - 1) * q_stride, state, first_row, num_rows)
    for first in range(0, position + num_tokens, CHUNK_KEYS):
        chunk_blocks = blocks + first // _block_size(spec) * 4
        for tile in range(num_tiles):
            state = states + tile * _tile_bytes(spec)
            num_keys = 0
            for slot in range(per_tile):
                token = min(tile * per_tile + slot, num_tokens - 1)
                limit = max(0, min(CHUNK_KEYS, position + token + 1 - first))
                num_keys = max(num_keys, limit)
                limits = state + _tile_limits(spec) + slot * _group_size(spec) * 4
                set_limits(spec, limits, limit)
            if num_keys > 0:
                attend_tile_chunk(
                    spec, keys, values, chunk_blocks, block_stride, num_keys, state, scratch
                )
    for token in range(num_tokens):
        state = states + token // per_tile * _tile_bytes(spec)
        first_row = token % per_tile * _group_size(spec)
        finish_token(spec, state, first_row, num_rows, output + token * output_stride)
