"""Attention of a flat batch: threads take pieces of work from a shared counter.

A piece is one KV head of up to TOKENS_PER_PIECE consecutive positions of one sequence; a decode is
a piece of one position.  Pieces differ in size by orders of magnitude, so none is assigned before.
Where a few decodes are all there is, and less than two for each thread, threads share their spans.
"""

from typing import Any, Final

from kernels.paged_attention.formats import CHUNK_KEYS, SPAN_KEYS, AttentionSpecialization
from kernels.paged_attention.row_states import (
    Layout,
    finish_decode,
    finish_tile_token,
    join_decode_span,
    join_tile_span,
    layout_of,
    set_limits,
    start_decode,
    start_tile_token,
    tokens_of_tile,
)
from kernels.paged_attention.tiles import attend_decode_chunk, attend_tile_chunk
from kernels.threads.stage import STAGE_BYTES, finish, take
from kernels.vector_ir.function import constant_of, inlined

TILES_PER_PIECE: Final = 4  # keys and values of a chunk are used by all of them while they are near
_MIN_UNITS_PER_THREAD: Final = 2  # below, spans are shared
NUM_STAGES: Final = 2


def tokens_per_piece(spec: AttentionSpecialization) -> int:
    return TILES_PER_PIECE * tokens_of_tile(spec)


def scratch_bytes(spec: AttentionSpecialization) -> int:
    """Of each thread."""
    return _tile_layout(spec).work_bytes + TILES_PER_PIECE * _tile_layout(spec).size_bytes


def spans_bytes(spec: AttentionSpecialization, num_threads: int, max_positions: int) -> int:
    """Of what threads share: states of spans."""
    num_spans = -(-max_positions // SPAN_KEYS)
    return num_threads * _MIN_UNITS_PER_THREAD * num_spans * _decode_layout(spec).size_bytes


def _tile_layout(spec: AttentionSpecialization) -> Layout:
    return layout_of(spec, is_decode=False)


def _decode_layout(spec: AttentionSpecialization) -> Layout:
    return layout_of(spec, is_decode=True)


_head_dim = constant_of("head_dim", lambda spec: spec.head_dim)
_group_size = constant_of("group_size", lambda spec: spec.group_size)
_block_size = constant_of("block_size", lambda spec: spec.block_size)
_block_head_bytes = constant_of("block_head_bytes", lambda spec: spec.block_head_bytes)
_tokens_of_tile = constant_of("tokens_of_tile", tokens_of_tile)
_tile_bytes = constant_of("tile_bytes", lambda spec: _tile_layout(spec).size_bytes)
_tile_work_bytes = constant_of("tile_work_bytes", lambda spec: _tile_layout(spec).work_bytes)
_tile_limits = constant_of("tile_limits", lambda spec: _tile_layout(spec).limits)
_tile_starts = constant_of("tile_starts", lambda spec: _tile_layout(spec).starts)
_decode_bytes = constant_of("decode_bytes", lambda spec: _decode_layout(spec).size_bytes)
_decode_work_bytes = constant_of("decode_work_bytes", lambda spec: _decode_layout(spec).work_bytes)
_decode_limits = constant_of("decode_limits", lambda spec: _decode_layout(spec).limits)
_decode_starts = constant_of("decode_starts", lambda spec: _decode_layout(spec).starts)


@inlined
def paged_attention(
    spec: Any,  # an AttentionSpecialization
    num_threads: int,
    q: int,  # address of float32 [num_rows, q_stride_bytes / 4], queries first in a row
    q_stride: int,  # bytes
    output: int,  # address of float32 [num_rows, heads * head_dim]
    keys: int,  # address of one layer's keys
    values: int,
    num_kv_heads: int,
    window: int,  # positions a row sees, its own the last; ALL_POSITIONS: no limit
    pieces: Any,  # int64 [num_pieces, 4]: first row, tokens, position of the first, segment
    block_tables: Any,  # int32 [num_segments, width], see pad_block_tables
    stage: int,  # the first of NUM_STAGES of this call alone
    scratch: int,  # address of this thread's scratch_bytes
    spans: int,  # address of spans_bytes
) -> None:
    """Units are pieces by heads, and by spans where these are shared."""
    num_whole = len(pieces) * num_kv_heads
    num_spans = 1
    if num_whole < num_threads * _MIN_UNITS_PER_THREAD:
        num_spans = _spans_to_share(pieces)
    num_units = num_whole * num_spans
    num_done = 0
    unit = take(spec, stage, 1)
    while unit < num_units:
        _attend_unit(
            spec, q, q_stride, output, keys, values, num_kv_heads, window, pieces, block_tables,
            unit, num_spans, scratch, spans,
        )  # fmt: skip
        num_done += 1
        unit = take(spec, stage, 1)
    finish(spec, stage, num_done, num_units)
    if num_spans > 1:
        _join_spans(spec, output, num_kv_heads, pieces, num_spans, spans, stage + STAGE_BYTES)


@inlined
def _attend_unit(
    spec: Any,
    q: int,
    q_stride: int,
    output: int,
    keys: int,
    values: int,
    num_kv_heads: int,
    window: int,
    pieces: Any,
    block_tables: Any,
    unit: int,
    num_spans: int,
    scratch: int,
    spans: int,
) -> None:
    piece = unit // num_spans // num_kv_heads
    head = unit // num_spans % num_kv_heads
    first_row, num_tokens = pieces[piece, 0], pieces[piece, 1]
    position, segment = pieces[piece, 2], pieces[piece, 3]
    blocks = block_tables.ctypes.data + segment * block_tables.shape[1] * 4
    group_bytes = _group_size(spec) * _head_dim(spec) * 4
    source = q + first_row * q_stride + head * group_bytes
    target = output + (first_row * num_kv_heads + head) * group_bytes
    block_stride = num_kv_heads * _block_head_bytes(spec)
    head_keys = keys + head * _block_head_bytes(spec)
    head_values = values + head * _block_head_bytes(spec)
    if num_spans > 1:
        state = spans + unit * _decode_bytes(spec)
        start_decode(spec, source, state, 0)
        _attend_span(
            spec, head_keys, head_values, block_stride, blocks, position, window,
            unit % num_spans * SPAN_KEYS, state, scratch,
        )  # fmt: skip
    elif num_tokens == 1:
        _attend_one(
            spec, source, target, head_keys, head_values, block_stride, blocks, position,
            window, scratch,
        )  # fmt: skip
    else:
        _attend_many(
            spec, source, q_stride, target, num_kv_heads * group_bytes, head_keys, head_values,
            block_stride, blocks, position, num_tokens, window, scratch,
        )  # fmt: skip


@inlined
def _spans_to_share(pieces: Any) -> int:
    """Of the longest context; 1 unless all are decodes."""
    num_spans = 1
    for piece in range(len(pieces)):
        if pieces[piece, 1] != 1:
            return 1
        num_spans = max(num_spans, pieces[piece, 2] // SPAN_KEYS + 1)
    return num_spans


@inlined
def _join_spans(
    spec: Any,
    output: int,
    num_kv_heads: int,
    pieces: Any,
    num_spans: int,
    spans: int,
    stage: int,
) -> None:
    group_bytes = _group_size(spec) * _head_dim(spec) * 4
    num_units = len(pieces) * num_kv_heads
    num_done = 0
    unit = take(spec, stage, 1)
    while unit < num_units:
        row = pieces[unit // num_kv_heads, 0]
        first = spans + unit * num_spans * _decode_bytes(spec)
        for span in range(num_spans):
            join_decode_span(spec, first + span * _decode_bytes(spec), first)
        finish_decode(
            spec, first, 0, output + (row * num_kv_heads + unit % num_kv_heads) * group_bytes
        )
        num_done += 1
        unit = take(spec, stage, 1)
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
    window: int,
    scratch: int,
) -> None:
    state = scratch + _decode_work_bytes(spec)
    start_decode(spec, q, state, 0)
    first_seen = max(0, position + 1 - window)
    for first in range(first_seen // SPAN_KEYS * SPAN_KEYS, position + 1, SPAN_KEYS):
        _attend_span(
            spec, keys, values, block_stride, blocks, position, window, first, state, scratch
        )
        join_decode_span(spec, state, state)
    finish_decode(spec, state, 0, output)


@inlined
def _attend_span(
    spec: Any,
    keys: int,
    values: int,
    block_stride: int,
    blocks: int,
    position: int,
    window: int,
    first_key: int,  # of the span
    state: int,
    work: int,
) -> None:
    """Nothing, where the row sees no key of the span."""
    first_seen = max(0, position + 1 - window)
    start = max(first_key, first_seen // CHUNK_KEYS * CHUNK_KEYS)
    for first in range(start, min(first_key + SPAN_KEYS, position + 1), CHUNK_KEYS):
        num_keys = min(CHUNK_KEYS, position + 1 - first)
        set_limits(spec, state + _decode_limits(spec), num_keys)
        set_limits(spec, state + _decode_starts(spec), max(0, first_seen - first))
        chunk_blocks = blocks + first // _block_size(spec) * 4
        attend_decode_chunk(spec, keys, values, chunk_blocks, block_stride, num_keys, state, work)


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
    window: int,
    scratch: int,
) -> None:
    """The last tile is filled up with copies of the last token, which nobody reads."""
    per_tile = _tokens_of_tile(spec)
    states = scratch + _tile_work_bytes(spec)
    num_tiles = (num_tokens + per_tile - 1) // per_tile
    for slot in range(num_tiles * per_tile):
        state = states + slot // per_tile * _tile_bytes(spec)
        first_row = slot % per_tile * _group_size(spec)
        start_tile_token(spec, q + min(slot, num_tokens - 1) * q_stride, state, first_row)
    end = position + num_tokens
    start = max(0, position + 1 - window) // CHUNK_KEYS * CHUNK_KEYS
    for first in range(start, end, CHUNK_KEYS):
        chunk_blocks = blocks + first // _block_size(spec) * 4
        is_last_of_span = (first + CHUNK_KEYS) % SPAN_KEYS == 0 or first + CHUNK_KEYS >= end
        for tile in range(num_tiles):
            state = states + tile * _tile_bytes(spec)
            num_keys = 0
            for slot in range(per_tile):
                row_end = position + min(tile * per_tile + slot, num_tokens - 1) + 1
                limit = max(0, min(CHUNK_KEYS, row_end - first))
                before = max(0, row_end - window - first)
                if before < limit:
                    num_keys = max(num_keys, limit)
                offset = slot * _group_size(spec) * 4
                set_limits(spec, state + _tile_limits(spec) + offset, limit)
                set_limits(spec, state + _tile_starts(spec) + offset, min(before, CHUNK_KEYS))
            if num_keys > 0:
                attend_tile_chunk(
                    spec, keys, values, chunk_blocks, block_stride, num_keys, state, scratch
                )
            if is_last_of_span:
                join_tile_span(spec, state, state)
    for token in range(num_tokens):
        state = states + token // per_tile * _tile_bytes(spec)
        first_row = token % per_tile * _group_size(spec)
        finish_tile_token(spec, state, first_row, output + token * output_stride)
