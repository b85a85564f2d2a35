"""A layer of experts: tokens sorted by expert, two grouped products, and their answers combined."""

from typing import Final

import torch
import triton

from kernels.devices import runs_triton
from kernels.grouped_gemm.op import group_rows, grouped_gemm
from kernels.moe.kernel import combine_experts_kernel
from kernels.moe.reference import Experts, moe_reference, route
from kernels.silu_mul.triton_op import silu_mul

_BLOCK: Final = 1024


def moe(x: torch.Tensor, router_logits: torch.Tensor, experts: Experts) -> torch.Tensor:
    """See ``reference.moe_reference``; returns x's dtype.

    x:             [num_tokens, hidden]
    router_logits: [num_tokens, num_experts]
    """
    if not runs_triton(x):
        return moe_reference(x, router_logits, experts).to(x.dtype)
    shares, ids = route(router_logits, experts)
    rows = group_rows(ids.flatten(), len(experts.down))
    inner = silu_mul(grouped_gemm(x, experts.gate_up, rows, experts.top_k))
    return _combine(grouped_gemm(inner, experts.down, rows), shares.contiguous())


def _combine(answers: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    (num_tokens, top_k), hidden = shares.shape, answers.shape[1]
    y = answers.new_empty(num_tokens, hidden)
    if y.numel():
        grid = (num_tokens, triton.cdiv(hidden, _BLOCK))
        combine_experts_kernel[grid](answers, shares, y, hidden, TOP_K=top_k, BLOCK=_BLOCK)
    return y
