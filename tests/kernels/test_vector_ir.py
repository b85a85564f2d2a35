"""Each building block against numpy, at every level the machine can run."""

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.vector_ir.emitter import Emitter, Value
from kernels.vector_ir.function import compiled_entry, emitted
from kernels.vector_ir.levels import FeatureLevel, runnable_levels
from kernels.vector_ir.rounding import flush_denormals, restore_denormals
from kernels.vector_ir.specialization import Specialization

Array = npt.NDArray[Any]
Apply = Callable[[Any, Array, Any], Array]  # (function, source, dtype of the target) -> target


def elementwise(name: str, source_bytes: int, target_bytes: int, body: Callable[..., None]) -> Any:
    def emit(e: Emitter, _spec: Specialization, source: Value, target: Value, n: Value) -> None:
        with e.loop(n) as index:
            body(
                e,
                e.at(source, e.times(index, source_bytes * e.lanes)),
                e.at(target, e.times(index, target_bytes * e.lanes)),
            )

    return emitted(name, emit)


def two_nibbles(e: Emitter, words: Value) -> Value:
    """The last, where a sign would be, and 16 times one from the middle."""
    last, middle = (
        e.mul(e.nibble_to_f32(words, index), e.constant(2.0 ** -e.nibble_power(index)))
        for index in (7, 5)
    )
    return e.fma(middle, e.constant(16.0), last)


_exp = elementwise("exp", 4, 4, lambda e, s, t: e.store_f32(e.exp(e.load_f32(s)), t))
_f16 = elementwise("f16", 2, 4, lambda e, s, t: e.store_f32(e.load_f16(s), t))
_halve = elementwise(
    "halve", 4, 4, lambda e, s, t: e.store_f32(e.mul(e.load_f32(s), e.constant(0.5)), t)
)
_bf16 = elementwise("bf16", 2, 4, lambda e, s, t: e.store_f32(e.load_bf16(s), t))
_to_bf16 = elementwise("to_bf16", 4, 2, lambda e, s, t: e.store_vector(e.to_bf16(e.load_f32(s)), t))
_nibbles = elementwise(
    "nibbles", 4, 4, lambda e, s, t: e.store_f32(two_nibbles(e, e.load_i32(s)), t)
)
_byte = elementwise(
    "byte", 4, 4, lambda e, s, t: e.store_f32(e.signed_byte_to_f32(e.load_i32(s), 1), t)
)
_fma = elementwise(
    "fma",
    4,
    4,
    lambda e, s, t: e.store_f32(e.fma(e.load_f32(s), e.load_f32(s), e.constant(-1.0)), t),
)


@compiled_entry
def run_exp(spec: Any, source: int, target: int, n: int) -> None:
    _exp(spec, source, target, n)


@compiled_entry
def run_f16(spec: Any, source: int, target: int, n: int) -> None:
    _f16(spec, source, target, n)


@compiled_entry
def run_without_subnormals(
    spec: Any, halves: int, wide: int, smallest: int, halved: int, saved: int, n: int
) -> None:
    flush_denormals(spec, saved)
    _f16(spec, halves, wide, n)
    _halve(spec, smallest, halved, 1)
    restore_denormals(spec, saved)


@compiled_entry
def run_bf16(spec: Any, source: int, target: int, n: int) -> None:
    _bf16(spec, source, target, n)


@compiled_entry
def run_to_bf16(spec: Any, source: int, target: int, n: int) -> None:
    _to_bf16(spec, source, target, n)


@compiled_entry
def run_nibbles(spec: Any, source: int, target: int, n: int) -> None:
    _nibbles(spec, source, target, n)


@compiled_entry
def run_byte(spec: Any, source: int, target: int, n: int) -> None:
    _byte(spec, source, target, n)


@compiled_entry
def run_fma(spec: Any, source: int, target: int, n: int) -> None:
    _fma(spec, source, target, n)


def _emit_sum(e: Emitter, _spec: Specialization, source: Value, target: Value) -> None:
    e.store_scalar(e.reduce(e.add, e.load_f32(source)), target)


def _emit_kept(
    e: Emitter, _spec: Specialization, source: Value, target: Value, count: Value
) -> None:
    narrow = e.builder.trunc(count, e.vector_i32.element)
    e.store_f32(e.keep_below(narrow, e.load_f32(source), -2.0), target)


_sum = emitted("sum", _emit_sum)
_kept = emitted("kept", _emit_kept)


@compiled_entry
def run_sum(spec: Any, source: int, target: int) -> None:
    _sum(spec, source, target)


@compiled_entry
def run_kept(spec: Any, source: int, target: int, count: int) -> None:
    _kept(spec, source, target, count)


@pytest.fixture
def apply(level: FeatureLevel, run_alone: Callable[..., None]) -> Apply:
    """Runs one of the functions above over whole vectors of its source."""

    def applied(run: Any, source: Array, dtype: Any) -> Array:
        target = np.zeros(len(source), dtype)
        num_vectors = len(source) // level.lanes
        addresses = source.ctypes.data, target.ctypes.data
        run_alone(run, Specialization(level), *addresses, num_vectors)
        return target

    return applied


def test_exp_is_within_two_units_in_the_last_place(apply: Apply) -> None:
    x = np.linspace(-87.0, 0.0, 1 << 12, dtype=np.float32)
    true = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(apply(run_exp, x, np.float32), true, rtol=2.4e-7)


def test_exp_of_zero_is_one_and_of_a_masked_score_next_to_nothing(apply: Apply) -> None:
    x = np.zeros(16, np.float32)
    x[1] = -1e30
    y = apply(run_exp, x, np.float32)
    assert y[0] == 1.0
    assert 0.0 <= y[1] < 1e-37


def test_every_finite_float16_converts_exactly(apply: Apply) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))]
    bits = bits[: len(bits) // 16 * 16]
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(apply(run_f16, bits, np.float32), expected)


def test_subnormal_numbers_count_as_zero_while_kernels_run_and_halves_as_what_they_are(
    level: FeatureLevel, run_alone: Callable[..., None]
) -> None:
    halves = np.arange(1 << 11, dtype=np.uint16)  # most are subnormal themselves
    smallest = np.full(16, np.finfo(np.float32).smallest_normal, np.float32)
    wide, halved, saved = np.empty(len(halves), np.float32), np.empty_like(smallest), np.zeros(1)
    addresses = [array.ctypes.data for array in (halves, wide, smallest, halved, saved)]
    num_vectors = len(halves) // level.lanes
    run_alone(run_without_subnormals, Specialization(level), *addresses, num_vectors)
    np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
    if platform.machine() == "x86_64":
        assert not halved[: level.lanes].any()
    assert (smallest / np.float32(2) > 0).all(), "the thread's own setting came back"


def test_bfloat16_is_the_upper_half_of_float32(apply: Apply) -> None:
    bits = np.arange(0, 1 << 16, 16, dtype=np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    got = apply(run_bf16, bits, np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_storing_bfloat16_rounds_to_nearest_even(apply: Apply) -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF] * 4, np.uint32)
    got = apply(run_to_bf16, bits.view(np.float32), np.uint16)
    np.testing.assert_array_equal(got[:4], np.array([0x3F80, 0x3F82, 0x3F81, 0x3F80], np.uint16))


def test_nibbles_and_signed_bytes_are_read_from_words(apply: Apply) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 64, dtype=np.uint32)
    np.testing.assert_array_equal(
        apply(run_nibbles, words, np.float32),
        ((words >> 20 & 15) * 16 + (words >> 28)).astype(np.float32),
    )
    signed = (words >> 8).astype(np.uint8).view(np.int8).astype(np.float32)
    np.testing.assert_array_equal(apply(run_byte, words, np.float32), signed * 2.0**24)


def test_fused_multiply_add_rounds_once(level: FeatureLevel, apply: Apply) -> None:
    """Portable code rounds the product, too, where the target lacks the instruction."""
    x = np.full(16, 1.0 + 2.0**-12, np.float32)
    once, twice = 2.0**-11 + 2.0**-24, 2.0**-11
    results = set(apply(run_fma, x, np.float32).tolist())
    assert results == {once} or (level is FeatureLevel.PORTABLE and results == {twice})


def test_lanes_are_summed_in_a_fixed_tree(
    level: FeatureLevel, run_alone: Callable[..., None]
) -> None:
    x = np.random.default_rng(1).standard_normal(level.lanes).astype(np.float32)
    total = np.zeros(1, np.float32)
    run_alone(run_sum, Specialization(level), x.ctypes.data, total.ctypes.data)
    tree = x
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    assert total[0] == tree[0]


def test_masked_lanes_are_filled_whatever_they_held(
    level: FeatureLevel, run_alone: Callable[..., None]
) -> None:
    x = np.full(16, np.nan, np.float32)
    x[0] = 3.0
    y = np.zeros(16, np.float32)
    run_alone(run_kept, Specialization(level), x.ctypes.data, y.ctypes.data, 1)
    np.testing.assert_array_equal(y[: level.lanes], [3.0] + [-2.0] * (level.lanes - 1))


def test_levels_follow_from_the_features() -> None:
    avx2 = {"avx2": True, "fma": True, "f16c": True}
    avx512 = avx2 | dict.fromkeys(("avx512f", "avx512bw", "avx512dq", "avx512vl"), True)
    assert runnable_levels({}) == (FeatureLevel.PORTABLE,)
    assert runnable_levels(avx2)[0] is FeatureLevel.AVX2
    assert runnable_levels(avx512)[0] is FeatureLevel.AVX512
    assert runnable_levels(avx512 | {"avx512vnni": True})[0] is FeatureLevel.AVX512_VNNI


def test_a_specialization_changes_its_type_with_its_values() -> None:
    from numba import typeof

    assert typeof(Specialization(FeatureLevel.AVX2)) == typeof(Specialization(FeatureLevel.AVX2))
    assert typeof(Specialization(FeatureLevel.AVX2)) != typeof(Specialization(FeatureLevel.AVX512))
