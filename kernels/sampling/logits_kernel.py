"""Triton: what is done to logits before a token is drawn, and what is read from them after."""

import triton
import triton.language as tl


@triton.jit
def penalize_kernel(
    logits_ptr,  # [num_rows, vocab], changed in place
    counts_ptr,  # [num_rows, vocab] int32
    is_in_prompt_ptr,  # [num_rows, vocab] int8
    repetition_ptr,  # [num_rows] float32
    presence_ptr,  # [num_rows] float32
    frequency_ptr,  # [num_rows] float32
    logits_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    x = tl.load(logits_ptr + row * logits_stride + token, mask=mask, other=0.0).to(tl.float32)
    count = tl.load(counts_ptr + row * vocab + token, mask=mask, other=0)
    is_in_prompt = tl.load(is_in_prompt_ptr + row * vocab + token, mask=mask, other=0) != 0
    repetition = tl.load(repetition_ptr + row)
    repeated = tl.where(x > 0.0, x / repetition, x * repetition)
    x = tl.where((count > 0) | is_in_prompt, repeated, x)
    x -= tl.load(frequency_ptr + row) * count.to(tl.float32)
    x -= tl.where(count > 0, tl.load(presence_ptr + row), 0.0)
    x = x.to(logits_ptr.dtype.element_ty)
    tl.store(logits_ptr + row * logits_stride + token, x, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "token_ids_ptr"])
def bias_kernel(
    logits_ptr,  # [num_rows, vocab], changed in place
    rows_ptr,  # [num_entries]
    token_ids_ptr,  # [num_entries]
    values_ptr,  # [num_entries] float32
    logits_stride,
    vocab,
):
    entry = tl.program_id(0)
    token = tl.load(token_ids_ptr + entry).to(tl.int64)
    is_known = (token >= 0) & (token < vocab)  # else it would be a neighbour's logit
    place = logits_ptr + tl.load(rows_ptr + entry).to(tl.int64) * logits_stride + token
    x = tl.load(place, mask=is_known, other=0.0).to(tl.float32) + tl.load(values_ptr + entry)
    tl.store(place, x.to(logits_ptr.dtype.element_ty), mask=is_known)


@triton.jit(do_not_specialize=["num_ids"])
def logprobs_kernel(
    logits_ptr,  # [num_rows, vocab]
    token_ids_ptr,  # [num_rows, num_ids]
    logprobs_ptr,  # [num_rows, num_ids] float32
    logits_stride,
    vocab,
    num_ids,
    BLOCK: tl.constexpr,
    IDS_BLOCK: tl.constexpr,
):
    """The sum of powers runs over the logits once; nothing as wide as they are is written."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + lane
        x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        new_largest = tl.maximum(largest, x)
        anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp(largest - anchor) + tl.exp(x - anchor)
        largest = new_largest
    top = tl.max(largest, axis=0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(largest - top), axis=0))
    number = tl.arange(0, IDS_BLOCK)
    mask = number < num_ids
    token = tl.load(token_ids_ptr + row * num_ids + number, mask=mask, other=0)
    x = tl.load(logits_ptr + token, mask=mask, other=0.0).to(tl.float32)
    tl.store(logprobs_ptr + row * num_ids + number, x - log_sum, mask=mask)
