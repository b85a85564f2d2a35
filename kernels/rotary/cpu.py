"""Queries turn in place; keys and values go to their blocks, in the blocks' format."""

from typing import Any

from kernels.paged_attention.formats import AttentionSpecialization, KvFormat
from kernels.quantize.cpu import codes_of, scale_and_inverse
from kernels.threads.stage import SHARES_PER_THREAD, finish, take
from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled, constant_of, emitted


def _emit_turned(
    e: Emitter, spec: AttentionSpecialization, x: Value, cos: Value, sin: Value, v: int
) -> tuple[Value, Value]:
    """Vector ``v`` of the lower half and its partner in the upper half."""
    offset = 4 * e.lanes * v
    low, high = e.load_f32(x, offset), e.load_f32(x, offset + 2 * spec.head_dim)
    c, s = e.load_f32(cos, offset), e.load_f32(sin, offset)
    return e.sub(e.mul(low, c), e.mul(high, s)), e.add(e.mul(high, c), e.mul(low, s))


def _emit_turn_query(
    e: Emitter, spec: AttentionSpecialization, x: Value, cos: Value, sin: Value
) -> None:
    for v in range(spec.head_dim // 2 // e.lanes):
        low, high = _emit_turned(e, spec, x, cos, sin, v)
        e.store_f32(low, x, 4 * e.lanes * v)
        e.store_f32(high, x, 4 * e.lanes * v + 2 * spec.head_dim)


def _emit_store_key(
    e: Emitter,
    spec: AttentionSpecialization,
    x: Value,
    cos: Value,
    sin: Value,
    block: Value,  # address of the block's head
    place: Value,  # of the token in the block
) -> None:
    """The token's dimensions are a block apart."""
    halves = [_emit_turned(e, spec, x, cos, sin, v) for v in range(spec.head_dim // 2 // e.lanes)]
    vectors = [low for low, _ in halves] + [high for _, high in halves]
    element_bytes = spec.kv_format.element_bytes
    target = e.at(block, e.times(place, element_bytes))
    for index, stored in enumerate(_emit_stored(e, spec, vectors, block, place)):
        for lane in range(e.lanes):
            offset = (index * e.lanes + lane) * spec.block_size * element_bytes
            e.store_scalar(e.extract(stored, lane), target, offset)


def _emit_store_value(
    e: Emitter, spec: AttentionSpecialization, x: Value, block: Value, place: Value
) -> None:
    vectors = [e.load_f32(x, 4 * e.lanes * v) for v in range(spec.head_dim // e.lanes)]
    element_bytes = spec.kv_format.element_bytes
    target = e.at(block, e.times(place, spec.head_dim * element_bytes))
    for index, stored in enumerate(_emit_stored(e, spec, vectors, block, place)):
        e.store_vector(stored, target, index * e.lanes * element_bytes)


def _emit_stored(
    e: Emitter, spec: AttentionSpecialization, vectors: list[Value], block: Value, place: Value
) -> list[Value]:
    """Elements as the cache keeps them; stores the token's scale, if it has one."""
    if spec.kv_format is KvFormat.FLOAT32:
        return vectors
    if spec.kv_format is KvFormat.BFLOAT16:
        return [e.to_bf16(vector) for vector in vectors]
    scale, inverse = scale_and_inverse(e, vectors)
    e.store_scalar(scale, e.at(block, e.times(place, 4)), spec.scales_offset_bytes)
    return [e.to_bytes(codes_of(e, vector, inverse)) for vector in vectors]


_turn_query = emitted("turn_query", _emit_turn_query)
_store_key = emitted("store_key", _emit_store_key)
_store_value = emitted("store_value", _emit_store_value)
_head_dim = constant_of("head_dim", lambda spec: spec.head_dim)
_group_size = constant_of("group_size", lambda spec: spec.group_size)
_block_size = constant_of("block_size", lambda spec: spec.block_size)
_block_head_bytes = constant_of("block_head_bytes", lambda spec: spec.block_head_bytes)


@compiled
def rotary(
    spec: Any,  # an AttentionSpecialization
    num_threads: int,
    qkv: int,  # address of float32 [num_rows, (heads + 2 * kv_heads) * head_dim]
    num_rows: int,
    num_kv_heads: int,
    positions: Any,  # int64 [num_rows]
    slots: Any,  # int64 [num_rows]: block * block_size + offset
    cos: int,  # address of float32 [max_positions, head_dim / 2]
    sin: int,
    keys: int,  # address of one layer's keys
    values: int,
    stage: int,  # of this call alone
) -> None:
    head_dim = _head_dim(spec)
    head_bytes = head_dim * 4
    num_heads = num_kv_heads * _group_size(spec)
    row_bytes = (num_heads + 2 * num_kv_heads) * head_bytes
    block_size = _block_size(spec)
    block_head_bytes = _block_head_bytes(spec)
    count = max(1, num_rows // (num_threads * SHARES_PER_THREAD))
    num_done = 0
    first = take(spec, stage, count)
    while first < num_rows:
        last = min(first + count, num_rows)
        for row in range(first, last):
            x = qkv + row * row_bytes
            angle = positions[row] * head_bytes // 2
            block = slots[row] // block_size
            offset = slots[row] - block * block_size
            for head in range(num_heads):
                _turn_query(spec, x + head * head_bytes, cos + angle, sin + angle)
            for head in range(num_kv_heads):
                place = (block * num_kv_heads + head) * block_head_bytes
                key = x + (num_heads + head) * head_bytes
                value = key + num_kv_heads * head_bytes
                _store_key(spec, key, cos + angle, sin + angle, keys + place, offset)
                _store_value(spec, value, values + place, offset)
        num_done += last - first
        first = take(spec, stage, count)
    finish(spec, stage, num_done, num_rows)
