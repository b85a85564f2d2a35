"""Blocks gathered and scattered, of any size, to the last there is."""

import pytest
import torch

from tests.kernels.triton_runs import DEVICE

op = pytest.importorskip("kernels.block_copy.op")


def bytes_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(DEVICE)


@pytest.mark.parametrize("block_bytes", [1, 12, 64, 9000], ids=str)
def test_blocks_land_where_they_should_and_nowhere_else(block_bytes: int) -> None:
    source, target = bytes_of(3, 5, block_bytes), bytes_of(3, 7, block_bytes)
    expected = target.clone()
    expected[:, [6, 0]] = source[:, [4, 4]]
    blocks = [torch.tensor(ids, device=DEVICE) for ids in ([4, 4], [6, 0])]
    op.block_copy(source, target, *blocks)
    assert torch.equal(target, expected)


def test_out_and_back_in_elsewhere() -> None:
    cache, host = bytes_of(4, 6, 48), torch.zeros(4, 2, 48, dtype=torch.uint8, device=DEVICE)
    before = cache.clone()

    def ids(*blocks: int) -> torch.Tensor:
        return torch.tensor(blocks, device=DEVICE)

    op.block_copy(cache, host, ids(5, 1), ids(0, 1))
    op.block_copy(host, cache, ids(1, 0), ids(2, 3))
    assert torch.equal(cache[:, [2, 3]], before[:, [1, 5]])
    assert torch.equal(cache[:, [0, 1, 4, 5]], before[:, [0, 1, 4, 5]])


def test_nothing_to_copy_and_what_does_not_fit() -> None:
    cache, none = bytes_of(1, 2, 8), torch.empty(0, dtype=torch.int64, device=DEVICE)
    op.block_copy(cache, cache, none, none)
    with pytest.raises(ValueError, match="do not match"):
        op.block_copy(cache, bytes_of(1, 2, 9), none, none)
    with pytest.raises(ValueError, match="bytes"):
        op.block_copy(cache.float(), cache.float(), none, none)
