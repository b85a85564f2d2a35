"""Triton: rounding to float8 by integer arithmetic, the same on every GPU and in the interpreter.

OCP 8-bit Floating Point Specification 1.0: e4m3 has 4 bits of exponent, of bias 7, 3 of mantissa,
no infinity, and 448 as its largest number.
"""

import triton
import triton.language as tl


@triton.jit
def encode_e4m3(x):
    """float32 to the nearest e4m3, ties to even, as uint8; what is too large becomes 448."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(tl.abs(x), 448.0)
    wide = magnitude.to(tl.int32, bitcast=True)
    normal = ((wide + 0x7FFFF + ((wide >> 20) & 1)) >> 20) - (120 << 3)
    # Under 2^-6 steps are 2^-9: in a number of 2^14 that is the last bit, and adding rounds.
    shifted = magnitude + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
