"""Rows of several adapters and of none."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, DTYPES, assert_near, numbers, poisoned_memory

grouped = pytest.importorskip("kernels.grouped_gemm.op")
op = pytest.importorskip("kernels.lora.op")
reference = pytest.importorskip("kernels.lora.reference")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@DTYPES
@pytest.mark.parametrize("rank", [1, 8, 17])
def test_matches_reference_and_rows_without_one_keep_every_bit(
    rank: int, dtype: torch.dtype
) -> None:
    adapters = op.Adapters(
        shrink=0.2 * numbers(3, rank, 40, dtype=dtype),
        expand=numbers(3, 50, rank, dtype=dtype),
        scales=torch.tensor([0.5, 2.0, 1.0], device=DEVICE),
    )
    ids = torch.tensor([-1, 2, 0, -1, 2, 1], device=DEVICE)
    y, x = numbers(6, 50, dtype=dtype), numbers(6, 40, dtype=dtype)
    before, expected = y.clone(), reference.lora_reference(y, x, adapters, ids)
    op.add_lora_(y, x, adapters, grouped.group_rows(ids, 3))
    assert_near(y, expected, dtype, factor=10)
    assert torch.equal(y[[0, 3]], before[[0, 3]])


def test_without_adapters_nothing_changes() -> None:
    adapters = op.Adapters(numbers(1, 4, 8), numbers(1, 9, 4), torch.ones(1, device=DEVICE))
    y, ids = numbers(2, 9), torch.tensor([-1, -1], device=DEVICE)
    before = y.clone()
    op.add_lora_(y, numbers(2, 8), adapters, grouped.group_rows(ids, 1))
    assert torch.equal(y, before)
