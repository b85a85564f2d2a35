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

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.num_rows: list[int] = []
        self.now_s = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.num_rows.append(len(x))
        self.now_s += self.seconds(len(x))
        return x


def test_each_number_of_rows_takes_the_way_that_was_faster_there() -> None:
    """Measured once, before anything is served; then only looked up."""
    codes, dense = Way(lambda rows: rows), Way(lambda rows: 20.0)
    ways = {"codes": codes, "dense": dense}

    def measure_s(work: Callable[[], object]) -> float:
        before = codes.now_s + dense.now_s
        work()
        return codes.now_s + dense.now_s - before

    sizes = fastest.sizes_through(33)
    assert sizes == [1, 2, 4, 8, 16, 32, 64]
    chosen = fastest.fastest_ways(ways, [numbers(size, 8) for size in sizes], measure_s)
    assert chosen == ["codes"] * 5 + ["dense"] * 2
    assert codes.num_rows == dense.num_rows == sizes
    product = fastest.FastestLinear(ways, chosen)
    for num_rows in (0, 1, 9, 16, 17, 500):
        product(numbers(num_rows, 8))
    assert codes.num_rows[len(sizes) :] == [0, 1, 9, 16]
    assert dense.num_rows[len(sizes) :] == [17, 500], "of more rows than were measured as of most"
    assert product.size_bytes == 2


@pytest.mark.parametrize("most", [1, 2, 3, 8], ids=str)
def test_the_last_size_holds_so_many_rows(most: int) -> None:
    sizes = fastest.sizes_through(most)
    assert sizes[-1] // 2 < most <= sizes[-1]
