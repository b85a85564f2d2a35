"""Rotation and KV write at once: every slot written, and no other."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, DTYPES, TOLERANCE, numbers, poisoned_memory

op = pytest.importorskip("kernels.kv_write.op")
reference = pytest.importorskip("kernels.kv_write.reference")
NUM_BLOCKS, BLOCK_SIZE = 4, 16
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def cache_of(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Full of NaN: what is not written stays so."""
    shape = (NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_dim)
    bits = torch.full((*shape[:3], head_dim * dtype.itemsize), 0xFF, dtype=torch.uint8)
    return bits.to(DEVICE).view(dtype), bits.clone().to(DEVICE).view(dtype)


def bits_of(part: torch.Tensor) -> torch.Tensor:
    return part.view(torch.uint8)


def inputs(
    num_tokens: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """qkv, positions, and tables."""
    qkv = numbers(num_tokens, (heads[0] + 2 * heads[1]) * head_dim, dtype=dtype)
    angles = 3 * numbers(40, head_dim // 2)
    positions = torch.arange(num_tokens, device=DEVICE) * 7 % 40
    return qkv, positions, (angles.cos(), angles.sin())


SCALES = {1: [0.5], 2: [0.5, 2.0], 3: [1.0, 0.25, 3.0]}
SHAPES = {
    "3-of-1": ((3, 1), 64),
    "8-of-2": ((8, 2), 96),
    "9-of-3": ((9, 3), 64),
    "2-of-2": ((2, 2), 128),
}


@DTYPES
@pytest.mark.parametrize("is_float8", [False, True], ids=["as-computed", "float8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(shape: str, is_float8: bool, dtype: torch.dtype) -> None:
    heads, head_dim = SHAPES[shape]
    qkv, positions, tables = inputs(3, heads, head_dim, dtype)
    slots = torch.tensor([NUM_BLOCKS * BLOCK_SIZE - 1, 17, 16], device=DEVICE)  # the last there is
    scale = torch.tensor(SCALES[heads[1]], device=DEVICE)
    stored = FLOAT8 if is_float8 else dtype
    cache, expected = (cache_of(heads[1], head_dim, stored) for _ in range(2))
    turned = qkv.float()
    reference.kv_write_reference(turned, positions, slots, tables, expected, (scale, scale / 2))
    op.kv_write(qkv, positions, slots, tables, cache, (scale, scale / 2))
    rtol, atol = TOLERANCE[dtype]
    torch.testing.assert_close(qkv.float(), turned, rtol=rtol, atol=4 * atol)
    steps = (0.13, 0.004) if is_float8 else (rtol, 4 * atol)
    for part, expected_part in zip(cache, expected, strict=True):
        torch.testing.assert_close(
            part.float(), expected_part.float(), rtol=steps[0], atol=steps[1], equal_nan=True
        )


def test_float8_is_rounded_to_the_nearest_and_saturates() -> None:
    """Values pass unturned: position 0, and values are never turned."""
    x = torch.cat(
        [
            torch.linspace(-500.0, 500.0, 61),
            torch.tensor([1.0625, 1.1875, 1.9687, 0.0146, 0.0029, -0.001, 0.0, 0.01563]),
            2.0 ** torch.arange(-14, 9),
            torch.randn(128 - 92, generator=torch.Generator().manual_seed(1)) * 0.02,
        ]
    ).to(DEVICE)
    qkv = torch.cat([x, x, x])[None]
    cache = cache_of(1, 128, FLOAT8)
    one, zero = torch.ones(1, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    tables = (torch.ones(1, 64, device=DEVICE), torch.zeros(1, 64, device=DEVICE))
    op.kv_write(qkv, zero, zero + 16, tables, cache, (one, one))
    expected = bits_of(x.clamp(-448, 448).to(FLOAT8))
    for part in cache:
        assert torch.equal(bits_of(part)[1, 0, 0], expected)


def test_padding_goes_to_the_null_block_and_what_has_no_slot_nowhere() -> None:
    qkv, positions, tables = inputs(4, (2, 1), 64, torch.float32)
    slots = torch.tensor([0, -1, 0, -1], device=DEVICE)
    cache, one = cache_of(1, 64, torch.float32), torch.ones(1, device=DEVICE)
    op.kv_write(qkv, positions, slots, tables, cache, (one, one))
    for part in cache:
        assert (bits_of(part)[1:] == 0xFF).all()
        assert (bits_of(part)[0, 1:] == 0xFF).all()
        assert not part[0, 0].isnan().any()


def test_no_tokens_write_nothing() -> None:
    qkv, positions, tables = inputs(0, (2, 1), 64, torch.float32)
    cache, one = cache_of(1, 64, torch.float32), torch.ones(1, device=DEVICE)
    op.kv_write(qkv, positions, positions, tables, cache, (one, one))
    assert all((bits_of(part) == 0xFF).all() for part in cache)


def test_heads_are_normed_before_they_are_turned_but_not_values() -> None:
    qkv, positions, tables = inputs(3, (4, 2), 64, torch.float32)
    norms = reference.HeadNorms(numbers(64, seed=3), numbers(64, seed=4), 1e-6)
    slots, one = torch.tensor([20, 21, 40], device=DEVICE), torch.ones(2, device=DEVICE)
    cache, expected = (cache_of(2, 64, torch.float32) for _ in range(2))
    turned = qkv.clone()
    reference.kv_write_reference(turned, positions, slots, tables, expected, (one, one), norms)
    op.kv_write(qkv, positions, slots, tables, cache, (one, one), norms)
    for result, wanted in ((qkv, turned), *zip(cache, expected, strict=True)):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_tables_of_another_width_are_refused() -> None:
    qkv, positions, tables = inputs(1, (2, 1), 64, torch.float32)
    one = torch.ones(1, device=DEVICE)
    cache = cache_of(1, 96, torch.float32)
    with pytest.raises(ValueError, match="expected"):
        op.kv_write(qkv, positions, positions, tables, cache, (one, one))
