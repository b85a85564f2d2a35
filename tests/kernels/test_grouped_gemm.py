"""Rows of several groups, of none, and groups without rows."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, DTYPES, assert_near, numbers, poisoned_memory

op = pytest.importorskip("kernels.grouped_gemm.op")
reference = pytest.importorskip("kernels.grouped_gemm.reference")

GROUPS = {
    "no-rows": [],
    "one": [2],
    "none-has-a-group": [-1, -1],
    "some": [2, -1, 0, 2, 2, 0, -1],
    "more-than-a-tile": [1] * 18 + [0],
}


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@DTYPES
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_matches_reference(groups: list[int], dtype: torch.dtype) -> None:
    x, weights = numbers(len(groups), 40, dtype=dtype), numbers(3, 33, 40, dtype=dtype, seed=1)
    ids = torch.tensor(groups, dtype=torch.int64, device=DEVICE)
    result = op.grouped_gemm(x, weights, op.group_rows(ids, 3))
    expected = reference.grouped_gemm_reference(x, weights, ids, 1)
    assert_near(result[ids >= 0], expected[ids >= 0], dtype, factor=10)


def test_copies_of_a_row_go_to_several_groups() -> None:
    x, weights = numbers(3, 16), numbers(4, 5, 16)
    ids = torch.tensor([0, 3, 3, 1, 2, 0], device=DEVICE)
    result = op.grouped_gemm(x, weights, op.group_rows(ids, 4), copies=2)
    expected = reference.grouped_gemm_reference(x, weights, ids, 2)
    assert_near(result, expected, x.dtype, factor=10)


def test_adding_leaves_rows_without_a_group_alone() -> None:
    y, x, weights = numbers(4, 20, dtype=torch.bfloat16), numbers(4, 8), numbers(2, 20, 8)
    before, ids = y.clone(), torch.tensor([-1, 1, -1, 0], device=DEVICE)
    scales = torch.tensor([0.5, 2.0], device=DEVICE)
    op.add_grouped_gemm_(y, x, weights, op.group_rows(ids, 2), scales)
    delta = reference.grouped_gemm_reference(x, weights, ids, 1)
    expected = before.float() + delta * scales[ids.clamp(min=0)][:, None]
    assert_near(y, expected, y.dtype)
    assert torch.equal(y[[0, 2]], before[[0, 2]])


def test_shapes_that_do_not_match_are_refused() -> None:
    rows = op.group_rows(torch.tensor([0, 0], device=DEVICE), 1)
    with pytest.raises(ValueError, match="do not match"):
        op.grouped_gemm(numbers(3, 8), numbers(1, 4, 8), rows)
