"""Triton: one program per row draws its token, without a sort.

A token's key is its logit's bits, made to ascend, then its id reversed: keys are all different, and
their order is the ranking, of equals the smallest id first.  What top-k and top-p keep is all from
the largest key on whose mass, with all above it, reaches a target; bisection finds it, and snaps to
keys that exist, so that it ends early.  Masses are float64, in a fixed order.
"""

import triton
import triton.language as tl

NO_TOKEN: tl.constexpr = tl.constexpr(0x7FFFFFFF)
# Of minus and of plus infinity; their difference is within 63 bits.
LOWEST_KEY: tl.constexpr = tl.constexpr(-(0x7F800001 << 31))
BEYOND_KEYS: tl.constexpr = tl.constexpr(0x7F800001 << 31)


# A batch's settings lie in one tensor: where each begins depends on how many rows there are.
@triton.jit(
    do_not_specialize_on_alignment=["temperatures_ptr", "top_ps_ptr", "min_ps_ptr", "uniforms_ptr"]
)
def sample_kernel(
    logits_ptr,  # [num_rows, vocab]
    temperatures_ptr,  # [num_rows] float64
    top_ks_ptr,  # [num_rows] int32
    top_ps_ptr,  # [num_rows] float64
    min_ps_ptr,  # [num_rows] float64
    uniforms_ptr,  # [num_rows] float64
    weights_ptr,  # [num_rows, vocab] float32, to work in
    tokens_ptr,  # [num_rows] int64
    logits_stride,
    vocab,
    ARE_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    largest, best = _argmax(logits_ptr, vocab, BLOCK)
    token = best
    if not ARE_GREEDY:
        temperature, top_k = tl.load(temperatures_ptr + row), tl.load(top_ks_ptr + row)
        top_p, min_p = tl.load(top_ps_ptr + row), tl.load(min_ps_ptr + row)
        if (temperature != 0.0) & (top_p != 0.0) & (top_k != 1):
            weights_ptr += row * vocab
            total = _weigh(logits_ptr, weights_ptr, vocab, largest, temperature, min_p, BLOCK)
            tl.debug_barrier()
            uniform = tl.load(uniforms_ptr + row)
            kept = top_k.to(tl.int64) * 0 + LOWEST_KEY
            if (top_k > 0) & (top_k < vocab):
                kept = _threshold(logits_ptr, weights_ptr, vocab, kept, top_k.to(tl.float64), True,
                                  BLOCK)  # fmt: skip
                total, _a, _b = _mass_from(logits_ptr, weights_ptr, vocab, kept, kept, False, BLOCK)
            if top_p < 1.0:
                kept = _threshold(logits_ptr, weights_ptr, vocab, kept, top_p * total, False, BLOCK)
                total, _a, _b = _mass_from(logits_ptr, weights_ptr, vocab, kept, kept, False, BLOCK)
            token = _draw(logits_ptr, weights_ptr, vocab, kept, uniform * total, best, BLOCK)
    tl.store(tokens_ptr + row, token.to(tl.int64))


@triton.jit
def _argmax(logits_ptr, vocab, BLOCK: tl.constexpr):
    """The largest, and the smallest id of those that are."""
    lane = tl.arange(0, BLOCK)
    values = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = lane
    for start in range(0, vocab, BLOCK):
        token = start + lane
        x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        ids = tl.where(x > values, token, ids)
        values = tl.where(x > values, x, values)
    largest = tl.max(values, axis=0)
    best = tl.min(tl.where(values == largest, ids, vocab - 1), axis=0)
    return largest, tl.minimum(best, vocab - 1)


@triton.jit
def _weigh(logits_ptr, weights_ptr, vocab, largest, temperature, min_p, BLOCK: tl.constexpr):
    """Writes each token's likelihood over the likeliest's; returns their sum."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, vocab, BLOCK):
        token = start + lane
        x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
        distance = x.to(tl.float64) - largest.to(tl.float64)
        weight = tl.exp(distance / temperature).to(tl.float32)
        weight = tl.where(weight.to(tl.float64) < min_p, 0.0, weight)
        tl.store(weights_ptr + token, weight, mask=token < vocab)
        total += weight.to(tl.float64)
    return tl.sum(total, axis=0)


@triton.jit
def _draw(logits_ptr, weights_ptr, vocab, kept, draw, best, BLOCK: tl.constexpr):
    """The first token, by id, where the cumulative mass of the kept exceeds the draw."""
    lane = tl.arange(0, BLOCK)
    before = draw * 0.0
    first = best * 0 + NO_TOKEN
    last = best
    for start in range(0, vocab, BLOCK):
        token = start + lane
        weight, key = _token(logits_ptr, weights_ptr, vocab, token)
        is_kept = (key >= kept) & (weight > 0.0)
        mass = tl.where(is_kept, weight.to(tl.float64), 0.0)
        is_beyond = (before + tl.cumsum(mass, axis=0) > draw) & is_kept
        first = tl.minimum(first, tl.min(tl.where(is_beyond, token, NO_TOKEN), axis=0))
        last = tl.maximum(last, tl.max(tl.where(is_kept, token, 0), axis=0))
        before += tl.sum(mass, axis=0)
    return tl.where(first == NO_TOKEN, last, first)  # none: the sums differ in their last bits


@triton.jit
def _token(logits_ptr, weights_ptr, vocab, token):
    """[BLOCK] weights, and keys; of what is not in the vocabulary, no weight."""
    mask = token < vocab
    weight = tl.load(weights_ptr + token, mask=mask, other=0.0)
    x = tl.load(logits_ptr + token, mask=mask, other=0.0).to(tl.float32) + 0.0  # no -0
    bits = x.to(tl.int32, bitcast=True)
    ascending = (bits ^ ((bits >> 31) & NO_TOKEN)).to(tl.int64)
    return weight, (ascending << 31) + (-token + NO_TOKEN).to(tl.int64)


@triton.jit
def _threshold(
    logits_ptr, weights_ptr, vocab, lowest, target, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest key that, with all above it, reaches the target, or ``lowest``."""
    low = lowest
    high = lowest * 0 + BEYOND_KEYS
    while high - low > 1:
        middle = low + (high - low) // 2
        mass, above, below = _mass_from(
            logits_ptr, weights_ptr, vocab, middle, low, IS_COUNT, BLOCK
        )
        is_reached = mass >= target
        low = tl.where(is_reached, above, low)
        high = tl.where(is_reached, high, below + 1)
    return low


@triton.jit
def _mass_from(
    logits_ptr, weights_ptr, vocab, key, low, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """Of the tokens from a key on the mass, or number, and the lowest key; the next key below, at
    least low."""
    lane = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.float64)
    above = tl.full([BLOCK], BEYOND_KEYS, tl.int64)
    below = tl.zeros([BLOCK], tl.int64) + low
    for start in range(0, vocab, BLOCK):
        weight, own = _token(logits_ptr, weights_ptr, vocab, start + lane)
        is_in = (own >= key) & (weight > 0.0)
        share = tl.full([BLOCK], 1.0, tl.float64) if IS_COUNT else weight.to(tl.float64)
        mass += tl.where(is_in, share, 0.0)
        above = tl.minimum(above, tl.where(is_in, own, BEYOND_KEYS))
        below = tl.maximum(below, tl.where(is_in | (weight == 0.0), low, own))
    return tl.sum(mass, axis=0), tl.min(above, axis=0), tl.max(below, axis=0)
