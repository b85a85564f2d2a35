"""Float8 products: per row and channel, and per block, against the same codes in float32."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, assert_near, numbers, poisoned_memory

op = pytest.importorskip("kernels.gemm_fp8.op")
reference = pytest.importorskip("kernels.gemm_fp8.reference")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def weight_of(out_features: int, in_features: int, *, has_blocks: bool) -> "op.Float8Weight":
    codes = (100 * numbers(out_features, in_features)).clamp(-448, 448).to(torch.float8_e4m3fn)
    shape = (-(-out_features // 128), -(-in_features // 128)) if has_blocks else (out_features,)
    return op.Float8Weight(codes, 0.01 * numbers(*shape).abs())


# rows, in, out; the long sum shows an accumulator of fewer bits than float32, on a GPU that has one
SHAPES = [(0, 128, 16), (1, 128, 16), (3, 200, 130), (17, 16, 40), (2, 4224, 16)]


@pytest.mark.parametrize("has_blocks", [False, True], ids=["per-row", "per-block"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], has_blocks: bool) -> None:
    num_rows, in_features, out_features = shape
    weight = weight_of(out_features, in_features, has_blocks=has_blocks)
    x = reference.quantize_rows_reference(numbers(num_rows, in_features), in_blocks=has_blocks)
    expected = reference.gemm_fp8_reference(x, weight)
    assert_near(op.gemm_fp8(x, weight, torch.float32), expected, torch.float32, factor=100)


@pytest.mark.parametrize("in_blocks", [False, True], ids=["per-row", "per-block"])
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 130), (2, 256)], ids=str)
def test_rows_are_quantized_as_defined(shape: tuple[int, int], in_blocks: bool) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    x[:, :1] *= 30
    result = op.quantize_rows(x, in_blocks=in_blocks)
    expected = reference.quantize_rows_reference(x, in_blocks=in_blocks)
    torch.testing.assert_close(result.scales, expected.scales, rtol=1e-6, atol=0)
    assert_near(result.codes, expected.codes, torch.float32)


def test_a_row_of_zeros_stays_zero() -> None:
    rows = op.quantize_rows(torch.zeros(2, 128, device=DEVICE), in_blocks=False)
    weight = weight_of(16, 128, has_blocks=False)
    assert (op.gemm_fp8(rows, weight, torch.float32) == 0).all()


def test_rows_and_weights_must_be_scaled_alike() -> None:
    rows = op.quantize_rows(numbers(1, 128), in_blocks=True)
    with pytest.raises(ValueError, match="do not match"):
        op.gemm_fp8(rows, weight_of(16, 128, has_blocks=False), torch.float32)
