"""Triton: one program per copy, part and stretch of the block."""

import triton
import triton.language as tl


@triton.jit
def block_copy_kernel(
    source_ptr,  # [num_parts, num_source_blocks, num_words]
    target_ptr,  # [num_parts, num_target_blocks, num_words]
    source_blocks_ptr,  # [num_copies]
    target_blocks_ptr,  # likewise
    source_stride,  # words of a part
    target_stride,
    num_words,  # of a block
    BLOCK: tl.constexpr,
):
    copy, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = word < num_words
    source_block = tl.load(source_blocks_ptr + copy).to(tl.int64)
    target_block = tl.load(target_blocks_ptr + copy).to(tl.int64)
    words = tl.load(source_ptr + part * source_stride + source_block * num_words + word, mask=mask)
    tl.store(target_ptr + part * target_stride + target_block * num_words + word, words, mask=mask)
