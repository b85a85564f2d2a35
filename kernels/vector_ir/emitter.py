"""Writes vector instructions for one feature level.

No fast-math flags anywhere: every sum has the order in which it is written, so a value does not
depend on how a loop was tiled.  Addresses are int64; offsets are bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from llvmlite import ir

from kernels.vector_ir.levels import FeatureLevel

Value = Any  # an llvmlite value: the library has no type information
Offset = int | Value

I8: Final = ir.IntType(8)
I16: Final = ir.IntType(16)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
F32: Final = ir.FloatType()

_LINE_BYTES: Final = 64
_PAGE_BYTES: Final = 4096
_FLOAT16_REBIAS: Final = (127 - 15) << 23  # between the exponents of float32 and float16
_SMALLEST_NORMAL_FLOAT16: Final = 2.0**-14
_LAST_NIBBLE: Final = 7  # of an int32
_INTO_ALL_CACHES: Final = 3  # LLVM's "locality"
_INTO_OUTER_CACHES: Final = 2


class Emitter:
    def __init__(self, builder: ir.IRBuilder, level: FeatureLevel) -> None:
        self.builder = builder
        self.level = level
        self.lanes = level.lanes
        self.vector_f32 = ir.VectorType(F32, self.lanes)
        self.vector_i32 = ir.VectorType(I32, self.lanes)
        self.zero = self.constant(0.0)

    @property
    def is_x86(self) -> bool:
        return str(self.builder.module.triple).startswith(("x86_64", "i686"))

    # -- scalars, addresses, control flow

    def i64(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def at(self, address: Value, offset: Offset) -> Value:
        if isinstance(offset, int):
            return address if offset == 0 else self.builder.add(address, self.i64(offset))
        return self.builder.add(address, offset)

    def times(self, value: Value, factor: int) -> Value:
        return self.builder.mul(value, self.i64(factor))

    def load_scalar(self, address: Value, offset: Offset = 0, kind: Value = F32) -> Value:
        return self.builder.load(self._pointer(address, offset, kind), align=_alignment(kind))

    def store_scalar(self, value: Value, address: Value, offset: Offset = 0) -> None:
        self.builder.store(
            value, self._pointer(address, offset, value.type), align=_alignment(value.type)
        )

    def scalar(self, value: float) -> Value:
        return ir.Constant(F32, float(np.float32(value)))

    def smaller(self, a: Value, b: Value) -> Value:
        """Of two signed integers."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def sqrt(self, value: Value) -> Value:
        return self.call("llvm.sqrt.f32", F32, [value])

    @contextmanager
    def loop(self, count: Value, start: Value | None = None) -> Iterator[Value]:
        """Yields the index, from ``start`` (0) up to ``count``."""
        builder = self.builder
        before = builder.block
        test = builder.append_basic_block("loop.test")
        body = builder.append_basic_block("loop.body")
        end = builder.append_basic_block("loop.end")
        builder.branch(test)
        builder.position_at_end(test)
        index = builder.phi(I64)
        index.add_incoming(self.i64(0) if start is None else start, before)
        builder.cbranch(builder.icmp_signed("<", index, count), body, end)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, self.i64(1)), builder.block)
        builder.branch(test)
        builder.position_at_end(end)

    @contextmanager
    def offsets(self, size: Value, element_bytes: int) -> Iterator[Value]:
        """Yields the byte offset of each whole vector in ``size`` elements."""
        with self.loop(self.builder.sdiv(size, self.i64(self.lanes))) as index:
            yield self.times(index, self.lanes * element_bytes)

    def variables(self, initial: Sequence[Value]) -> list[Value]:
        """Storage that LLVM turns into registers; read with ``get``, written with ``set``."""
        slots = []
        for value in initial:
            with self.builder.goto_entry_block():
                slots.append(self.builder.alloca(value.type))
            self.builder.store(value, slots[-1])
        return slots

    def get(self, variable: Value) -> Value:
        return self.builder.load(variable)

    def set(self, variable: Value, value: Value) -> None:
        self.builder.store(value, variable)

    def prefetch(self, address: Value, offset: Offset = 0) -> None:
        """For reading, into all cache levels."""
        self._prefetch(address, offset, _INTO_ALL_CACHES)

    def prefetch_far(self, address: Value, offset: Offset = 0) -> None:
        """For reading, into all cache levels but the first: where much is fetched long ahead.

        A core awaits only a dozen lines for its first cache at a time; further ones, and all reads
        behind them, wait for one to come.
        """
        self._prefetch(address, offset, _INTO_OUTER_CACHES)

    def prefetch_ahead(self, address: Value, size_bytes: int) -> None:
        """As many bytes as are read from ``address`` on, a page later.

        What fetches ahead by itself stops at the end of each page, and costs a wait there.
        """
        for offset in range(0, size_bytes, _LINE_BYTES):
            self.prefetch(address, _PAGE_BYTES + offset)

    def time_stamp(self) -> Value:
        """int64: ticks of a clock of constant rate that all cores share; 0 where there is none."""
        if not self.is_x86:
            return self.i64(0)
        return self.call("llvm.readcyclecounter", I64, [])

    # -- loads, stores, conversions

    def constant(self, value: float) -> Value:
        return ir.Constant(self.vector_f32, [float(np.float32(value))] * self.lanes)

    def constant_i32(self, value: int) -> Value:
        return ir.Constant(self.vector_i32, [value] * self.lanes)

    def splat(self, scalar: Value) -> Value:
        vector = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.constant_i32(0))

    def broadcast(self, address: Value, offset: Offset = 0, kind: Value = F32) -> Value:
        return self.splat(self.load_scalar(address, offset, kind))

    def load_f32(self, address: Value, offset: Offset = 0) -> Value:
        return self._load(address, offset, F32)

    def load_i32(self, address: Value, offset: Offset = 0) -> Value:
        return self._load(address, offset, I32)

    def load_signed_bytes(self, address: Value, offset: Offset = 0) -> Value:
        """int8 as float32."""
        wide = self.builder.sext(self._load(address, offset, I8), self.vector_i32)
        return self.to_f32(wide)

    def load_bf16(self, address: Value, offset: Offset = 0) -> Value:
        """bfloat16 is the upper half of a float32."""
        wide = self.builder.zext(self._load(address, offset, I16), self.vector_i32)
        return self.as_f32(self.builder.shl(wide, self.constant_i32(16)))

    def load_f16(self, address: Value, offset: Offset = 0) -> Value:
        """float16 to float32, exact; the portable way holds for finite values only."""
        bits = self._load(address, offset, I16)
        if self.level is not FeatureLevel.PORTABLE:
            half = self.builder.bitcast(bits, ir.VectorType(ir.HalfType(), self.lanes))
            return self.builder.fpext(half, self.vector_f32)
        wide = self.builder.zext(bits, self.vector_i32)
        magnitude = self.shift_left(self.and_(wide, 0x7FFF), 13)
        # Never through a subnormal float32: those count as zero while kernels run.
        is_subnormal = self.builder.icmp_unsigned("<", magnitude, self.constant_i32(1 << 23))
        normal = self.builder.add(magnitude, self.constant_i32(_FLOAT16_REBIAS))
        lifted = self.as_f32(self.builder.add(normal, self.constant_i32(1 << 23)))
        subnormal = self.as_i32(self.sub(lifted, self.constant(_SMALLEST_NORMAL_FLOAT16)))
        value = self.builder.select(is_subnormal, subnormal, normal)
        sign = self.shift_left(self.and_(wide, 0x8000), 16)
        return self.as_f32(self.builder.or_(value, sign))

    def store_f32(self, vector: Value, address: Value, offset: Offset = 0) -> None:
        self.store_vector(vector, address, offset)

    def store_vector(self, vector: Value, address: Value, offset: Offset = 0) -> None:
        """Of whatever elements it has."""
        alignment = _alignment(vector.type.element)
        self.builder.store(vector, self._pointer(address, offset, vector.type), align=alignment)

    def to_bytes(self, vector: Value) -> Value:
        """int8 lanes of int32 lanes that fit."""
        return self.builder.trunc(vector, ir.VectorType(I8, self.lanes))

    def to_bf16(self, vector: Value) -> Value:
        """int16 lanes, rounded to the nearest, ties to even; finite values only."""
        bits = self.as_i32(vector)
        odd = self.and_(self.shift_right(bits, 16), 1)
        rounded = self.builder.add(bits, self.builder.add(odd, self.constant_i32(0x7FFF)))
        return self.builder.trunc(self.shift_right(rounded, 16), ir.VectorType(I16, self.lanes))

    def as_f32(self, vector: Value) -> Value:
        return self.builder.bitcast(vector, self.vector_f32)

    def as_i32(self, vector: Value) -> Value:
        return self.builder.bitcast(vector, self.vector_i32)

    # -- arithmetic

    def add(self, a: Value, b: Value) -> Value:
        return self.builder.fadd(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.builder.fsub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.builder.fmul(a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.builder.fdiv(a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once, except on portable targets without the instruction: there a
        software fused multiply-add would cost a call per lane."""
        name = "fmuladd" if self.level is FeatureLevel.PORTABLE else "fma"
        return self.call(f"llvm.{name}.v{self.lanes}f32", self.vector_f32, [a, b, c])

    def maximum(self, a: Value, b: Value) -> Value:
        """b where either is not a number."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def larger(self, a: Value, b: Value) -> Value:
        """``maximum`` of any two values of one type, scalars too."""
        return self.maximum(a, b)

    def absolute(self, vector: Value) -> Value:
        return self.call(f"llvm.fabs.v{self.lanes}f32", self.vector_f32, [vector])

    def round(self, vector: Value) -> Value:
        """To the nearest whole number, ties to even; portable: within 2^22 of zero only."""
        if self.level is FeatureLevel.PORTABLE:
            shift = self.constant(1.5 * 2.0**23)  # beyond it, float32 has no fractions
            return self.sub(self.add(vector, shift), shift)
        return self.call(f"llvm.rint.v{self.lanes}f32", self.vector_f32, [vector])

    def keep_below(self, count: Value, vector: Value, fill: float) -> Value:
        """Lanes from ``count`` (int32) on become ``fill``."""
        lanes = ir.Constant(self.vector_i32, list(range(self.lanes)))
        is_kept = self.builder.icmp_signed("<", lanes, self.splat(count))
        return self.builder.select(is_kept, vector, self.constant(fill))

    def keep_from(self, start: Value, vector: Value, fill: float) -> Value:
        """Lanes before ``start`` (int32) become ``fill``."""
        lanes = ir.Constant(self.vector_i32, list(range(self.lanes)))
        is_kept = self.builder.icmp_signed(">=", lanes, self.splat(start))
        return self.builder.select(is_kept, vector, self.constant(fill))

    def exp(self, x: Value) -> Value:
        """e^x for x <= 88, within 2 ulp; 1 exactly at 0; 1.2e-38 for all x below -87.3.

        Source: Moshier, Cephes library, ``expf``; its polynomial in three parts that do not wait
        for each other.
        """
        # Adding 1.5 * 2^23 leaves a float32 no fraction: it rounds, and its last bits are the whole
        # number, here with the exponent's bias already in it.
        shift = self.constant(1.5 * 2.0**23 + 127.0)
        x = self.maximum(self.constant(-87.3), x)
        shifted = self.fma(x, self.constant(1.44269504088896341), shift)
        whole = self.sub(shifted, shift)
        part = self.fma(whole, self.constant(-0.693359375), x)
        part = self.fma(whole, self.constant(2.12194440e-4), part)
        pairs = (
            (1.9875691500e-4, 1.3981999507e-3),
            (8.3334519073e-3, 4.1665795894e-2),
            (1.6666665459e-1, 5.0000001201e-1),
        )
        highest, middle, lowest = (
            self.fma(self.constant(a), part, self.constant(b)) for a, b in pairs
        )
        square = self.mul(part, part)
        polynomial = self.fma(self.fma(highest, square, middle), square, lowest)
        value = self.fma(polynomial, square, self.add(part, self.constant(1.0)))
        return self.mul(value, self.as_f32(self.shift_left(self.as_i32(shifted), 23)))

    def reduce(self, combine: Callable[[Value, Value], Value], vector: Value) -> Value:
        """The lanes in a fixed tree: halves onto each other until one is left."""
        lanes = self.lanes
        while lanes > 1:
            undefined = ir.Constant(vector.type, ir.Undefined)
            half = ir.VectorType(I32, lanes // 2)
            low = ir.Constant(half, list(range(lanes // 2)))
            high = ir.Constant(half, list(range(lanes // 2, lanes)))
            vector = combine(
                self.builder.shuffle_vector(vector, undefined, low),
                self.builder.shuffle_vector(vector, undefined, high),
            )
            lanes //= 2
        return self.builder.extract_element(vector, ir.Constant(I32, 0))

    def extract(self, vector: Value, lane: int) -> Value:
        return self.builder.extract_element(vector, ir.Constant(I32, lane))

    # -- integers and quantized codes

    def and_(self, vector: Value, mask: int) -> Value:
        return self.builder.and_(vector, self.constant_i32(mask))

    def shift_left(self, vector: Value, bits: int) -> Value:
        return self.builder.shl(vector, self.constant_i32(bits)) if bits else vector

    def shift_right(self, vector: Value, bits: int) -> Value:
        """Zeros come in from the left."""
        return self.builder.lshr(vector, self.constant_i32(bits)) if bits else vector

    def to_f32(self, vector: Value) -> Value:
        return self.builder.sitofp(vector, self.vector_f32)

    def to_i32(self, vector: Value) -> Value:
        return self.builder.fptosi(vector, self.vector_i32)

    def nibble_to_f32(self, words: Value, index: int) -> Value:
        """Nibble ``index`` (0: lowest) of each int32, times 2^``nibble_power(index)``."""
        if self._has_table_lookup:
            # In 16 floats; the instruction reads the lowest four bits only.
            table = ir.Constant(self.vector_f32, [float(n) for n in range(16)])
            name = "llvm.x86.avx512.permvar.sf.512"
            shifted = self.shift_right(words, 4 * index)
            return self.call(name, self.vector_f32, [table, shifted])
        if index == _LAST_NIBBLE:  # in its place it would be a sign
            return self.to_f32(self.shift_right(words, 4 * index))
        return self.to_f32(self.and_(words, 0xF << (4 * index)))

    def nibble_power(self, index: int) -> int:
        """A nibble that is read where it stands saves shifting it down: the scale can do that."""
        return 0 if self._has_table_lookup or index == _LAST_NIBBLE else 4 * index

    @property
    def _has_table_lookup(self) -> bool:
        return self.level in (FeatureLevel.AVX512, FeatureLevel.AVX512_VNNI)

    def signed_byte_to_f32(self, words: Value, index: int) -> Value:
        """2^24 times byte ``index`` of each int32, read as signed: saves shifting it down again."""
        return self.to_f32(self.and_(self.shift_left(words, 24 - 8 * index), 0xFF000000))

    def call(self, name: str, result: Value, arguments: Sequence[Value]) -> Value:
        """An LLVM intrinsic, or a function of the C library."""
        module = self.builder.module
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.builder.call(module.globals[name], arguments)

    # -- private

    def _prefetch(self, address: Value, offset: Offset, locality: int) -> None:
        arguments = [
            self._pointer(address, offset, I8),
            *(ir.Constant(I32, number) for number in (0, locality, 1)),
        ]
        self.call("llvm.prefetch.p0", ir.VoidType(), arguments)

    def _load(self, address: Value, offset: Offset, kind: Value) -> Value:
        pointer = self._pointer(address, offset, ir.VectorType(kind, self.lanes))
        return self.builder.load(pointer, align=_alignment(kind))

    def _pointer(self, address: Value, offset: Offset, kind: Value) -> Value:
        return self.builder.inttoptr(self.at(address, offset), kind.as_pointer())


def _alignment(kind: Value) -> int:
    """Bytes; elements are aligned to their own size, vectors need not be."""
    return 4 if kind == F32 else int(kind.width) // 8
