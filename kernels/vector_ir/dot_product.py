"""Dot products of bytes in groups of four: unsigned codes times signed ones, summed as integers.

Sums are exact, so every level gives the same bits.  A word holds four bytes of one column; a quad
holds the four bytes of x that belong to them, the same in every lane.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from llvmlite import ir

from kernels.vector_ir.emitter import I8, I16, I32, Emitter, Value
from kernels.vector_ir.levels import FeatureLevel

# Their 16-bit sums stay exact for codes of up to four bits: 8 quads * 2 * 15 * 127 < 2^15.
MAX_QUADS: Final = 8
_BYTES_OF_EACH_HALF: Final = 0x00FF00FF

Operand = tuple[Value, ...]  # a word as ``dot`` wants it


def takes_whole_bytes(level: FeatureLevel) -> bool:
    """Otherwise codes have at most four bits."""
    return level is FeatureLevel.AVX512_VNNI


def operand(e: Emitter, words: Value) -> Operand:
    """To be done once for all rows."""
    if e.level is FeatureLevel.PORTABLE:
        even = e.and_(words, _BYTES_OF_EACH_HALF)
        odd = e.and_(e.shift_right(words, 8), _BYTES_OF_EACH_HALF)
        return _as_i16(e, even), _as_i16(e, odd)
    return (words,)


def dot(e: Emitter, operands: Sequence[Operand], quads: Sequence[Value]) -> Value:
    """int32 lanes: the sum over all words.  x's bytes are -127 to 127."""
    assert len(operands) == len(quads) <= MAX_QUADS
    if e.level is FeatureLevel.AVX512_VNNI:
        return _dot_vnni(e, operands, quads)
    multiply = _products_portable if e.level is FeatureLevel.PORTABLE else _products_x86
    products = [multiply(e, o, quad) for o, quad in zip(operands, quads, strict=True)]
    pairs = reduce(e.builder.add, products)
    if e.level is FeatureLevel.PORTABLE:
        halves = e.as_i32(pairs)
        low = e.builder.ashr(e.shift_left(halves, 16), e.constant_i32(16))
        return e.builder.add(low, e.builder.ashr(halves, e.constant_i32(16)))
    ones = ir.Constant(pairs.type, [1] * (2 * e.lanes))
    name = "avx512.pmaddw.d.512" if e.lanes == 16 else "avx2.pmadd.wd"
    return e.call(f"llvm.x86.{name}", e.vector_i32, [pairs, ones])


def _dot_vnni(e: Emitter, operands: Sequence[Operand], quads: Sequence[Value]) -> Value:
    """Two chains: the instruction takes five cycles, and two of them start at a time."""
    sums = [e.constant_i32(0), e.constant_i32(0)]
    for index, ((words,), quad) in enumerate(zip(operands, quads, strict=True)):
        arguments = [sums[index % 2], _as_i8(e, words), _as_i8(e, quad)]
        sums[index % 2] = e.call("llvm.x86.avx512.vpdpbusd.512", e.vector_i32, arguments)
    return e.builder.add(*sums)


def _products_x86(e: Emitter, words: Operand, quad: Value) -> Value:
    """int16 lanes, each the sum of two products."""
    name = "avx512.pmaddubs.w.512" if e.lanes == 16 else "avx2.pmadd.ub.sw"
    kind = ir.VectorType(I16, 2 * e.lanes)
    return e.call(f"llvm.x86.{name}", kind, [_as_i8(e, words[0]), _as_i8(e, quad)])


def _products_portable(e: Emitter, words: Operand, quad: Value) -> Value:
    even_words, odd_words = words
    pairs = _as_i16(e, quad)
    eight = ir.Constant(pairs.type, [8] * (2 * e.lanes))
    even = e.builder.ashr(e.builder.shl(pairs, eight), eight)
    odd = e.builder.ashr(pairs, eight)
    return e.builder.add(e.builder.mul(even_words, even), e.builder.mul(odd_words, odd))


def _as_i8(e: Emitter, vector: Value) -> Value:
    return e.builder.bitcast(vector, ir.VectorType(I8, 4 * e.lanes))


def _as_i16(e: Emitter, vector: Value) -> Value:
    return e.builder.bitcast(vector, ir.VectorType(I16, 2 * e.lanes))


def broadcast_quad(e: Emitter, address: Value, offset: int) -> Value:
    return e.broadcast(address, offset, I32)
