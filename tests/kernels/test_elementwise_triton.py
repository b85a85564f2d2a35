"""Norm, gate and rotation under Triton, against their definitions in float32."""

from collections.abc import Iterator

import pytest
import torch

from kernels.rms_norm.reference import add_rms_norm_reference
from kernels.rotary.reference import rotary_reference
from kernels.silu_mul.reference import silu_mul_reference
from tests.kernels.triton_runs import DEVICE, DTYPES, assert_near, numbers, poisoned_memory

rms_norm = pytest.importorskip("kernels.rms_norm.triton_op")
rotary = pytest.importorskip("kernels.rotary.triton_op")
silu_mul = pytest.importorskip("kernels.silu_mul.triton_op")
EPS = 1e-5


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@DTYPES
@pytest.mark.parametrize("shape", [(0, 64), (1, 1), (3, 100), (2, 4096)], ids=str)
def test_the_norm_of_a_sum_is_that_of_what_is_stored(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    residual, delta = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    weight = numbers(shape[1], dtype=dtype, seed=2)
    expected_sum = residual.float() + delta.float()
    y = rms_norm.add_rms_norm_(residual, delta, weight, EPS)
    assert_near(residual, expected_sum, dtype)
    stored = residual.float()
    _, expected = add_rms_norm_reference(stored, torch.zeros_like(stored), weight.float(), EPS)
    assert_near(y, expected, dtype, factor=4)


def test_without_a_delta_the_residual_stays() -> None:
    residual, weight = numbers(2, 48), numbers(48)
    before = residual.clone()
    y = rms_norm.add_rms_norm_(residual, None, weight, EPS)
    assert torch.equal(residual, before)
    assert_near(
        y, add_rms_norm_reference(before, torch.zeros_like(before), weight, EPS)[1], y.dtype
    )


def test_a_norms_row_does_not_depend_on_its_neighbours() -> None:
    together, weight = numbers(5, 96), numbers(96)
    y = rms_norm.add_rms_norm_(together, None, weight, EPS)
    for row in range(5):
        alone = rms_norm.add_rms_norm_(together[row : row + 1], None, weight, EPS)
        assert torch.equal(alone[0], y[row])


def test_rows_may_lie_apart_but_not_their_elements() -> None:
    wide = numbers(3, 80)
    expected = rms_norm.add_rms_norm_(wide[:, :40].clone(), None, numbers(40), EPS)
    assert torch.equal(rms_norm.add_rms_norm_(wide[:, :40], None, numbers(40), EPS), expected)
    with pytest.raises(ValueError, match="contiguous rows"):
        rms_norm.add_rms_norm_(wide.T, None, numbers(3), EPS)


@DTYPES
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (2, 33), (1, 1100)], ids=str)
def test_the_gate_matches_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = 3 * numbers(shape[0], 2 * shape[1], dtype=dtype)
    assert_near(silu_mul.silu_mul(gate_up), silu_mul_reference(gate_up.float()), dtype)


def test_a_gate_of_large_numbers_is_finite() -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 2.0, 2.0]], device=DEVICE)
    assert_near(silu_mul.silu_mul(gate_up), torch.tensor([[-0.0, 2e4]]).to(DEVICE), gate_up.dtype)


@DTYPES
@pytest.mark.parametrize("shape", [(0, 1, 64), (1, 3, 64), (3, 9, 96), (2, 2, 128)], ids=str)
def test_heads_turn_by_their_positions(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    positions = torch.tensor([7, 0, 30][: shape[0]], dtype=torch.int64, device=DEVICE)
    angles = 3 * numbers(31, shape[2] // 2)
    expected = rotary_reference(x.float(), angles[positions].cos(), angles[positions].sin())
    rotary.rotary_(x, positions, (angles.cos(), angles.sin()))
    assert_near(x, expected, dtype)
