"""4-bit weights: products, and what AWQ and GPTQ checkpoints mean."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, DTYPES, assert_near, numbers, poisoned_memory

formats = pytest.importorskip("kernels.gemm_w4a16.formats")
op = pytest.importorskip("kernels.gemm_w4a16.op")
reference = pytest.importorskip("kernels.gemm_w4a16.reference")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def random_codes(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 16, shape, generator=generator, dtype=torch.int32).to(DEVICE)


def weight_of(
    in_features: int, out_features: int, group: int, dtype: torch.dtype
) -> "formats.Int4Weight":
    zeros = random_codes(in_features // group, out_features).to(torch.int8)
    scales = 0.05 * numbers(in_features // group, out_features).abs().to(dtype)
    codes = formats.pack_rows(random_codes(in_features, out_features))
    return formats.Int4Weight(codes, zeros, scales)


SHAPES = {  # rows, in, out, group
    "no-rows": (0, 128, 64, 128),
    "one-row": (1, 128, 96, 64),
    "odd": (3, 96, 40, 32),
    "two-tiles": (65, 32, 8, 16),
}


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(shape: str, dtype: torch.dtype) -> None:
    num_rows, in_features, out_features, group = SHAPES[shape]
    x = numbers(num_rows, in_features, dtype=dtype)
    weight = weight_of(in_features, out_features, group, dtype)
    expected = reference.gemm_w4a16_reference(x, weight)
    assert_near(op.gemm_w4a16(x, weight), expected, dtype, factor=10)


def test_dense_weights_are_the_same_numbers() -> None:
    weight = weight_of(96, 70, 32, torch.float32)
    dense = op.dequantize(weight)
    assert torch.equal(dense, reference.dequantize_reference(weight))
    assert (weight.in_features, weight.out_features, weight.group_size) == (96, 70, 32)
    assert weight.size_bytes == 96 * 70 // 2 + 3 * 70 * 5


def packed_columns(codes: torch.Tensor, order: list[int]) -> torch.Tensor:
    """As the checkpoint's own tool does it: nibble i of a word is column order[i] of its 8."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64, device=DEVICE)
    for word in range(words.shape[1]):
        for nibble, column in enumerate(order):
            words[:, word] |= codes[:, 8 * word + column].long() << (4 * nibble)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def test_awq_checkpoints_mean_scale_times_code_less_zero() -> None:
    codes, zeros, scales = random_codes(64, 16), random_codes(2, 16), numbers(2, 16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    weight = formats.from_awq(packed_columns(codes, order), packed_columns(zeros, order), scales)
    expected = (codes - zeros.repeat_interleave(32, 0)) * scales.repeat_interleave(32, 0)
    torch.testing.assert_close(reference.dequantize_reference(weight), expected.T)


def test_gptq_checkpoints_store_zeros_less_one() -> None:
    codes, zeros, scales = random_codes(64, 16), random_codes(2, 16), numbers(2, 16)
    qzeros = packed_columns(zeros, list(range(8)))
    weight = formats.from_gptq(formats.pack_rows(codes), qzeros, scales, torch.arange(64) // 32)
    expected = (codes - (zeros + 1).repeat_interleave(32, 0)) * scales.repeat_interleave(32, 0)
    torch.testing.assert_close(reference.dequantize_reference(weight), expected.T)
    with pytest.raises(ValueError, match="desc_act"):
        formats.from_gptq(formats.pack_rows(codes), qzeros, scales, torch.arange(64) % 2)


def test_odd_groups_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 96"):
        op.gemm_w4a16(numbers(1, 95), weight_of(96, 8, 32, torch.float32))
    with pytest.raises(ValueError, match="power of two"):
        op.gemm_w4a16(numbers(1, 96), weight_of(96, 8, 48, torch.float32))
