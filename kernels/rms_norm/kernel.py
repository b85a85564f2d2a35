"""Triton: one program per row, which stays in registers; the same sums in any batch."""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm_kernel(
    residual_ptr,  # [num_tokens, hidden]; becomes residual + delta, where there is a delta
    delta_ptr,  # [num_tokens, hidden]
    weight_ptr,  # [hidden]
    y_ptr,  # [num_tokens, hidden]
    residual_stride,
    delta_stride,
    y_stride,
    hidden,
    eps,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two >= hidden
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < hidden
    total = tl.load(residual_ptr + row * residual_stride + column, mask=mask, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + row * delta_stride + column, mask=mask, other=0.0)
        # Rounded as it is stored: whoever norms the stored sum again gets the same.
        total = (total.to(tl.float32) + delta.to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * residual_stride + column, total, mask=mask)
    x = total.to(tl.float32)  # [BLOCK]
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    y = (x * scale * weight).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * y_stride + column, y, mask=mask)
