"""Triton: the experts' answers for a token become one."""

import triton
import triton.language as tl


@triton.jit
def combine_experts_kernel(
    answers_ptr,  # [num_tokens, TOP_K, hidden]
    shares_ptr,  # [num_tokens, TOP_K] float32
    y_ptr,  # [num_tokens, hidden]
    hidden,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """In the order of the choice, whoever else is in the batch."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(TOP_K):
        answer_ptr = answers_ptr + (token * TOP_K + choice) * hidden + column
        answer = tl.load(answer_ptr, mask=mask, other=0.0).to(tl.float32)
        total += tl.load(shares_ptr + token * TOP_K + choice) * answer
    tl.store(y_ptr + token * hidden + column, total.to(y_ptr.dtype.element_ty), mask=mask)
