"""What lies past 2**31 elements is found there: pointers are reckoned in 64 bits.

The memory is asked for and hardly touched: on a CPU it takes no more than a few pages.
"""

from collections.abc import Callable

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, numbers

block_copy = pytest.importorskip("kernels.block_copy.op")
gemm_fp8 = pytest.importorskip("kernels.gemm_fp8.op")
gemm_w4a16 = pytest.importorskip("kernels.gemm_w4a16.op")
grouped = pytest.importorskip("kernels.grouped_gemm.op")
kv_write = pytest.importorskip("kernels.kv_write.op")
attention = pytest.importorskip("kernels.paged_attention.triton_op")
rms_norm = pytest.importorskip("kernels.rms_norm.triton_op")
rotary = pytest.importorskip("kernels.rotary.triton_op")
sampling = pytest.importorskip("kernels.sampling.triton_op")
silu_mul = pytest.importorskip("kernels.silu_mul.triton_op")

APART = 1 << 30  # elements between rows: itself within 32 bits, but not twice
WIDTH, HEAD_DIM, DTYPE = 48, 16, torch.float16
Outputs = tuple[torch.Tensor, ...]


def far_apart(x: torch.Tensor) -> torch.Tensor:
    """The same three rows, of which the last begins where 32 bits end."""
    room = torch.empty(2 * APART + x.shape[1], dtype=x.dtype, device=x.device)
    return room.as_strided(x.shape, (APART, 1)).copy_(x)


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, device=DEVICE)


def positions() -> torch.Tensor:
    return torch.arange(3, device=DEVICE)


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    angles = numbers(3, HEAD_DIM // 2)
    return angles.cos(), angles.sin()


def cache_of(num_blocks: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (
        torch.empty(num_blocks, 16, 1, HEAD_DIM, dtype=dtype, device=DEVICE) for _ in range(2)
    )
    return keys, values


def ones() -> tuple[torch.Tensor, torch.Tensor]:
    return full(1.0, 1), full(1.0, 1)


def one_sequence(block: int) -> "attention.AttentionRows":
    starts, context, table = (
        torch.tensor(values, dtype=torch.int32, device=DEVICE)
        for values in ([0, 3], [3], [[block]])
    )
    return attention.AttentionRows(starts, context, table, max_query_tokens=3, max_context=3)


def norm(x: torch.Tensor) -> Outputs:
    delta, weight = numbers(3, WIDTH, dtype=DTYPE, seed=1), numbers(WIDTH, dtype=DTYPE)
    return rms_norm.add_rms_norm_(x, delta, weight, 1e-5), x


def gate(x: torch.Tensor) -> Outputs:
    return (silu_mul.silu_mul(x),)


def turn(x: torch.Tensor) -> Outputs:
    rotary.rotary_(x.unflatten(1, (-1, HEAD_DIM)), positions(), tables())
    return (x,)


def write(x: torch.Tensor) -> Outputs:
    keys, values = cache_of(1, DTYPE)
    kv_write.kv_write(x, positions(), positions(), tables(), (keys, values), ones())
    return x, keys[:, :3], values[:, :3]


def attend(x: torch.Tensor) -> Outputs:
    cache = numbers(1, 16, 1, HEAD_DIM, dtype=DTYPE), numbers(1, 16, 1, HEAD_DIM, dtype=DTYPE)
    q = x.unflatten(1, (-1, HEAD_DIM))
    return (attention.paged_attention(q, cache, ones(), one_sequence(0)),)


def draw(x: torch.Tensor) -> Outputs:
    one, half = full(1.0, 3, dtype=torch.float64), full(0.5, 3, dtype=torch.float64)
    top_ks = full(9, 3, dtype=torch.int32)
    return (sampling.sample(x, sampling.Draws(one, top_ks, one, 0 * one, half)),)


def penalize(x: torch.Tensor) -> Outputs:
    counts, is_in_prompt = full(1, 3, WIDTH, dtype=torch.int32), full(0, 3, WIDTH, dtype=torch.bool)
    of_row = full(0.5, 3)
    sampling.penalize_(x, sampling.Penalties(counts, is_in_prompt, of_row, of_row, of_row))
    return (x,)


def bias(x: torch.Tensor) -> Outputs:
    sampling.bias_(x, sampling.LogitBias(positions(), positions(), full(2.5, 3)))
    return (x,)


def logprobs(x: torch.Tensor) -> Outputs:
    return (sampling.logprobs(x, positions()[:, None]),)


def to_float8(x: torch.Tensor) -> Outputs:
    rows = gemm_fp8.quantize_rows(x, in_blocks=False)
    return rows.codes, rows.scales


def by_4_bits(x: torch.Tensor) -> Outputs:
    codes = torch.arange(WIDTH // 8 * 8, dtype=torch.int32, device=DEVICE).view(-1, 8) * 123_457
    zeros = full(7, WIDTH // 16, 8, dtype=torch.int8)
    weight = gemm_w4a16.Int4Weight(codes, zeros, numbers(WIDTH // 16, 8, dtype=DTYPE))
    return (gemm_w4a16.gemm_w4a16(x, weight),)


def by_groups(x: torch.Tensor) -> Outputs:
    rows = grouped.group_rows(torch.tensor([1, 0, 1], device=DEVICE), 2)
    product = grouped.grouped_gemm(x, numbers(2, 8, WIDTH, dtype=DTYPE), rows)
    back = numbers(2, WIDTH, 8, dtype=DTYPE)
    grouped.add_grouped_gemm_(x, product, back, rows, full(1.0, 2))
    return product, x


OPS = (norm, gate, turn, write, attend, draw, penalize, bias, logprobs, to_float8, by_4_bits,
       by_groups)  # fmt: skip


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_rows_may_lie_far_apart(op: Callable[[torch.Tensor], Outputs]) -> None:
    """The answer is the one that the same rows have side by side, bit for bit."""
    x = numbers(3, WIDTH, dtype=DTYPE)
    far = far_apart(x)
    for result, expected in zip(op(far), op(x), strict=True):
        assert torch.equal(result.float(), expected.float())


def test_keys_and_values_are_written_and_read_in_the_last_of_many_blocks() -> None:
    answers = []
    for block in (1, (1 << 31) // (16 * HEAD_DIM)):
        cache, qkv = cache_of(block + 1, torch.float8_e4m3fn), numbers(3, WIDTH)
        slots = 16 * block + positions()
        kv_write.kv_write(qkv, positions(), slots, tables(), cache, ones())
        q = qkv[:, :HEAD_DIM].view(3, 1, HEAD_DIM)
        answers.append(attention.paged_attention(q, cache, ones(), one_sequence(block)))
    assert torch.equal(*answers)


def test_the_last_of_many_blocks_is_copied_there_and_back() -> None:
    block_bytes = 9  # no wider word divides it
    last = (1 << 31) // block_bytes + 1
    pool = torch.empty(1, last + 1, block_bytes, dtype=torch.uint8, device=DEVICE)
    few = torch.arange(2 * block_bytes, dtype=torch.uint8, device=DEVICE).view(1, 2, block_bytes)
    first, second, far = (torch.tensor([block], device=DEVICE) for block in (0, 1, last))
    block_copy.block_copy(few, pool, second, far)
    block_copy.block_copy(pool, few, far, first)
    assert torch.equal(few[0, 0], few[0, 1])
    assert torch.equal(pool[0, last], few[0, 1])
    assert few[0, 1].tolist() == list(range(block_bytes, 2 * block_bytes))
