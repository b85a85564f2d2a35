"""Triton: attention of any mix of prefill chunks and decodes over block tables.

A program takes a few tokens of one sequence and all query heads of one KV head, which stand as
rows of one tile, and the keys of one split.  The softmax is Milakov and Gimelshein's (2018), its
parts are merged by their log-sum-exp (Dao 2023).  Logarithms and powers are of base 2.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_seqs", "table_width"])
def paged_attention_kernel(
    q_ptr,  # [num_tokens, heads, HEAD_DIM]
    keys_ptr, values_ptr,  # each [num_blocks, block_size, kv_heads, HEAD_DIM]
    key_scales_ptr, value_scales_ptr,  # each [kv_heads] float32
    block_tables_ptr,  # [num_seqs, table_width] int32
    query_starts_ptr,  # [num_seqs + 1] int32: the row where each sequence's begin
    context_lengths_ptr,  # [num_seqs] int32: positions, the last of them its last row's
    output_ptr,  # [num_tokens, heads, HEAD_DIM]; of splits [num_tokens, heads, num_splits, ...]
    sums_ptr,  # of splits: [num_tokens, heads, num_splits] float32, log2 of the sum
    q_stride, num_seqs, table_width, block_size, scale, softcap, window, split_keys,
    GROUP: tl.constexpr,  # query heads of a KV head
    HEAD_DIM: tl.constexpr, HEAD_BLOCK: tl.constexpr,  # power of two >= HEAD_DIM
    ROWS: tl.constexpr, KEYS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr,
    IS_SPLIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    sequence = _sequence_of(query_starts_ptr, num_seqs, tl.program_id(0), ROWS // GROUP)
    kv_head = tl.program_id(1)
    first_row = tl.load(query_starts_ptr + sequence)
    num_tokens = tl.load(query_starts_ptr + sequence + 1) - first_row
    first_token = (tl.program_id(0) - first_row // (ROWS // GROUP) - sequence) * (ROWS // GROUP)
    if first_token >= num_tokens:
        return
    row, column = tl.arange(0, ROWS), tl.arange(0, HEAD_BLOCK)
    token = first_token + row // GROUP
    is_row = (row // GROUP < ROWS // GROUP) & (token < num_tokens)
    head = kv_head * GROUP + row % GROUP
    mask = is_row[:, None] & (column < HEAD_DIM)[None, :]
    q_offset = (first_row + token).to(tl.int64) * q_stride + head * HEAD_DIM
    q = tl.load(q_ptr + q_offset[:, None] + column[None, :], mask=mask, other=0.0).to(DOT)
    context = tl.load(context_lengths_ptr + sequence)
    start_position = context - num_tokens
    begin, end = _span(context, start_position + first_token, window, split_keys, ROWS // GROUP,
                       KEYS, HAS_WINDOW, IS_SPLIT)  # fmt: skip
    scale *= tl.load(key_scales_ptr + kv_head)
    largest, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_BLOCK], tl.float32)
    for start in range(begin // KEYS * KEYS, end, KEYS):
        largest, total, mixed = _attend(
            q, keys_ptr, values_ptr, block_tables_ptr + sequence * table_width, start, end,
            (start_position + token)[:, None], column, block_size, largest, total, mixed, scale,
            softcap, window, HEAD_DIM, KEYS, HAS_SOFTCAP, HAS_WINDOW, DOT,
        )  # fmt: skip
    mixed *= tl.load(value_scales_ptr + kv_head) / tl.where(total > 0, total, 1.0)[:, None]
    place = (first_row + token).to(tl.int64) * (tl.num_programs(1) * GROUP) + head
    if IS_SPLIT:
        place = place * tl.num_programs(2) + tl.program_id(2)
        log_sum = largest + tl.log2(tl.where(total > 0, total, 1.0))
        tl.store(sums_ptr + place, log_sum, mask=is_row)
    output_ptr += place[:, None] * HEAD_DIM + column[None, :]
    tl.store(output_ptr, mixed.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sequence_of(query_starts_ptr, num_seqs, tile, TOKENS: tl.constexpr):
    """Whose tile it is: sequence s begins at tile query_starts[s] // TOKENS + s, at most."""
    low = tile * 0
    high = low + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        is_before = tl.load(query_starts_ptr + middle) // TOKENS + middle <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    return low


@triton.jit
def _span(
    context, first_position, window, split_keys,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """Of the keys that any row of the tile sees, those of this split.

    split_keys: of each; 0: the sequence's are shared out evenly.
    """
    begin = first_position * 0
    end = tl.minimum(context, first_position + TOKENS)
    if HAS_WINDOW:
        begin = tl.maximum(begin, first_position - window + 1)
    if IS_SPLIT:
        even = tl.cdiv(tl.cdiv(context, tl.num_programs(2)), KEYS) * KEYS
        size = tl.where(split_keys > 0, split_keys, even)
        begin = tl.maximum(begin, tl.program_id(2) * size)
        end = tl.minimum(end, (tl.program_id(2) + 1) * size)
    return begin, end


@triton.jit
def _offsets(table_ptr, key, end, block_size, num_kv_heads, kv_head, HEAD_DIM: tl.constexpr):
    """[KEYS] where each key, and each value, begins in its part of the cache."""
    block = tl.load(table_ptr + key // block_size, mask=key < end, other=0).to(tl.int64)
    return ((block * block_size + key % block_size) * num_kv_heads + kv_head) * HEAD_DIM


@triton.jit
def _attend(
    q, keys_ptr, values_ptr, table_ptr, start, end, position, column, block_size, largest, total,
    mixed, key_scale, softcap, window, HEAD_DIM: tl.constexpr, KEYS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One more tile of keys.  A row that sees none of them keeps every bit of what it has.

    What lies in a block behind the context is loaded as 0: a weight of 0 times NaN would be NaN.
    """
    key = start + tl.arange(0, KEYS)
    is_key, is_column = key < end, column < HEAD_DIM
    offset = _offsets(table_ptr, key, end, block_size, tl.num_programs(1), tl.program_id(1),
                      HEAD_DIM)  # fmt: skip
    k = tl.load(
        keys_ptr + offset[None, :] + column[:, None],
        mask=is_column[:, None] & is_key[None, :], other=0.0,
    ).to(DOT)  # [HEAD_BLOCK, KEYS]  # fmt: skip
    scores = tl.dot(q, k, input_precision="ieee") * key_scale  # [ROWS, KEYS]
    if HAS_SOFTCAP:
        small = tl.exp(-2.0 * tl.abs(scores) / softcap)  # overflows for no score
        scores = tl.where(scores < 0.0, -softcap, softcap) * (1.0 - small) / (1.0 + small)
    is_seen = (key[None, :] <= position) & is_key[None, :]
    if HAS_WINDOW:
        is_seen = is_seen & (position - key[None, :] < window)
    scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(largest - anchor)
    v = tl.load(
        values_ptr + offset[:, None] + column[None, :],
        mask=is_column[None, :] & is_key[:, None], other=0.0,
    ).to(DOT)  # [KEYS, HEAD_BLOCK]  # fmt: skip
    total = total * shrink + tl.sum(weights, axis=1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(DOT), v, input_precision="ieee")
    return new_largest, total, mixed


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits_kernel(
    parts_ptr,  # [num_rows, num_splits, HEAD_DIM] float32
    sums_ptr,  # [num_rows, num_splits] float32, log2
    output_ptr,  # [num_rows, HEAD_DIM]
    num_splits,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
):
    """One split after the other: as many as there are change no bit of what they do not hold."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HEAD_BLOCK)
    mask = column < HEAD_DIM
    largest = tl.load(sums_ptr + row * num_splits)
    for split in range(1, num_splits):
        largest = tl.maximum(largest, tl.load(sums_ptr + row * num_splits + split))
    total = largest * 0.0
    mixed = tl.zeros([HEAD_BLOCK], tl.float32)
    for split in range(num_splits):
        place = row * num_splits + split
        weight = tl.exp2(tl.load(sums_ptr + place) - largest)
        part = tl.load(parts_ptr + place * HEAD_DIM + column, mask=mask, other=0.0)
        total += weight
        mixed += weight * part
    y = (mixed / total).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * HEAD_DIM + column, y, mask=mask)
