"""Products of narrow weights, and that a way is taken only where it was measured faster."""

from collections.abc import Callable

import pytest
import torch

from tests.kernels.triton_runs import numbers

fastest = pytest.importorskip("replica.gpu.fastest")
fp8 = pytest.importorskip("kernels.gemm_fp8.reference")
linear = pytest.importorskip("replica.gpu.linear")


def test_float8_rows_are_near_dense_ones() -> None:
    dense, x = numbers(32, 64), numbers(3, 64)
    scales = dense.abs().amax(1) / 448
    codes = (dense / scales[:, None]).to(torch.float8_e4m3fn)
    float8 = linear.Float8Linear(fp8.Float8Weight(codes, scales))
    near = torch.cosine_similarity(float8(x), linear.DenseLinear(dense)(x))
    assert near.min() > 0.995
    assert float8.size_bytes == 32 * 64 + 32 * 4


class Way:
    """A Linear that says how long it takes, instead of taking it."""

    size_bytes = 1

    def __init__(self, name: str, seconds: Callable[[int], float]) -> None:
        self.name = name
        self.seconds = seconds
        self.num_rows: list[int] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.num_rows.append(len(x))
        return x


def test_each_number_of_rows_takes_the_way_that_was_faster_there() -> None:
    codes, dense = Way("codes", lambda rows: rows), Way("dense", lambda rows: 20.0)
    measured: list[int] = []

    def measure_s(work: Callable[[], object]) -> float:
        x = work()
        assert isinstance(x, torch.Tensor)
        measured.append(len(x))
        way = codes if codes.num_rows[-1:] == [len(x)] and len(measured) % 2 else dense
        return way.seconds(len(x))

    chosen = fastest.FastestLinear({"codes": codes, "dense": dense}, 8, measure_s)
    like = numbers(1, 8)
    assert [chosen.choose(rows, like) for rows in (1, 9, 16, 17, 500)] == [
        "codes", "codes", "codes", "dense", "dense",
    ]  # fmt: skip
    assert measured == [1, 1, 16, 16, 32, 32, 512, 512], "each size once"
    assert len(chosen(numbers(3, 8))) == 3
    assert chosen.size_bytes == 2
