"""Mixed prefill chunks and decodes over scattered blocks, under Triton, against the definition."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from tests.kernels.triton_runs import DEVICE, WHOLE, assert_near, numbers, poisoned_memory

op = pytest.importorskip("kernels.paged_attention.triton_op")
reference = pytest.importorskip("kernels.paged_attention.rows_reference")

FLOAT8 = torch.float8_e4m3fn
NUM_BLOCKS = 24
MIXED = [(15, 1), (16, 1), (20, 0), (63, 1), (0, 17), (30, 7)]  # (start, tokens)


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def cache_of(
    kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (NUM_BLOCKS * 16 // block_size, block_size, kv_heads, head_dim)
    keys, values = numbers(*shape, seed=1), numbers(*shape, seed=2)
    return keys.to(dtype), values.to(dtype)


def rows_of(
    lengths: Sequence[tuple[int, int]], block_size: int = 16, num_blocks: int = NUM_BLOCKS
) -> "op.AttentionRows":
    """Blocks are handed out from the last there is, as a used pool would; tables end in block 0."""
    free = iter(range(num_blocks * 16 // block_size - 1, -1, -1))
    tables = [
        list(itertools.islice(free, -(-(start + count) // block_size))) for start, count in lengths
    ]
    width = 1 + max(map(len, tables), default=0)
    starts = itertools.accumulate((count for _, count in lengths), initial=0)

    def tensor(numbers: object) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)

    return op.AttentionRows(
        query_starts=tensor(list(starts)),
        context_lengths=tensor([start + count for start, count in lengths]),
        block_tables=tensor([[*t, *[0] * (width - len(t))] for t in tables]).view(-1, width),
        max_query_tokens=max((count for _, count in lengths), default=0),
        max_context=max((start + count for start, count in lengths), default=0),
    )


def ones(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(count, device=DEVICE), torch.ones(count, device=DEVICE)


SHAPES = {  # head_dim, query heads per KV head, KV heads, stored as
    "64-of-1": (64, 1, 2, torch.float32),
    "64-of-3": (64, 3, 1, torch.float32),
    "96-of-4": (96, 4, 1, torch.float32),
    "128-of-8": (128, 8, 1, torch.bfloat16),
    "64-of-3-float8": (64, 3, 2, FLOAT8),
}
DECODES = [(0, 1), (15, 1), (47, 1), (160, 1)]


SPLIT = ("64-of-3", "128-of-8")  # enough to see both kinds of tile


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        *(pytest.param(shape, MIXED, id=f"{shape}-mixed") for shape in SHAPES),
        *(
            pytest.param(
                shape, DECODES, id=f"{shape}-decodes", marks=() if shape in SPLIT else WHOLE
            )
            for shape in SHAPES
        ),
    ],
)
def test_matches_reference(shape: str, lengths: list[tuple[int, int]]) -> None:
    head_dim, group, kv_heads, stored = SHAPES[shape]
    dtype = torch.float32 if stored is FLOAT8 else stored
    cache, rows = cache_of(kv_heads, head_dim, stored), rows_of(lengths)
    scales = (0.5 + torch.rand(kv_heads, device=DEVICE), 0.5 + torch.rand(kv_heads, device=DEVICE))
    q = numbers(sum(count for _, count in lengths), kv_heads * group, head_dim, dtype=dtype)
    result = op.paged_attention(q, cache, scales, rows)
    expected = reference.rows_reference(q.float(), cache, scales, rows, op.PLAIN)
    assert_near(result, expected, dtype, factor=2)


@pytest.mark.parametrize("window", [1, pytest.param(16, marks=WHOLE), 33, 1000])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    cache, rows = cache_of(1, 64, torch.float32), rows_of(MIXED)
    q, options = numbers(27, 3, 64), op.AttentionOptions(window=window)
    result = op.paged_attention(q, cache, ones(1), rows, options)
    expected = reference.rows_reference(q, cache, ones(1), rows, options)
    assert_near(result, expected, q.dtype, factor=2)


def test_scores_are_capped() -> None:
    cache, rows = cache_of(1, 64, torch.float32), rows_of(MIXED)
    q, options = 8 * numbers(27, 2, 64), op.AttentionOptions(softcap=3.0, scale=0.3)
    result = op.paged_attention(q, cache, ones(1), rows, options)
    expected = reference.rows_reference(q, cache, ones(1), rows, options)
    assert_near(result, expected, q.dtype, factor=2)
    assert not torch.allclose(
        expected, reference.rows_reference(q, cache, ones(1), rows, replace(options, softcap=None))
    )


@pytest.mark.parametrize("block_size", [8, 48, pytest.param(128, marks=WHOLE)])
def test_blocks_of_any_size(block_size: int) -> None:
    cache = cache_of(1, 64, torch.float32, block_size)
    rows, q = rows_of([(40, 1), (0, 9)], block_size), numbers(10, 1, 64)
    expected = reference.rows_reference(q, cache, ones(1), rows, op.PLAIN)
    assert_near(op.paged_attention(q, cache, ones(1), rows), expected, q.dtype, factor=2)


@pytest.mark.parametrize("split_keys", [32, pytest.param(96, marks=WHOLE), 352])
def test_wherever_keys_are_split_the_answer_is_the_same(split_keys: int) -> None:
    """The merge is an oracle: a wrong sum or a lost key shows as another answer."""
    lengths = [(130, 1), (31, 1), (32, 1), (10, 15)]
    cache, rows, q = cache_of(1, 64, torch.float32), rows_of(lengths), numbers(18, 3, 64)
    options = op.AttentionOptions(split_keys=split_keys, window=100)
    expected = reference.rows_reference(q, cache, ones(1), rows, options)
    result = op.paged_attention(q, cache, ones(1), rows, options)
    assert_near(result, expected, q.dtype, factor=2)


def test_parts_of_the_keys_merge_into_the_whole() -> None:
    """By hand: attention over blocks before a cut, and over those behind it."""
    head_dim, num_keys, scale = 32, 40, 0.2
    q, keys, values = numbers(head_dim), numbers(num_keys, head_dim), numbers(num_keys, 5, seed=3)
    scores = keys @ q * scale
    whole = torch.softmax(scores, 0) @ values
    for cut in (1, 17, 39):
        parts = [slice(0, cut), slice(cut, num_keys)]
        means = torch.stack([torch.softmax(scores[part], 0) @ values[part] for part in parts])
        sums = torch.stack([torch.logsumexp(scores[part], 0) for part in parts])
        merged = reference.merge_reference(means, sums / torch.tensor(2.0).log().to(DEVICE))
        torch.testing.assert_close(merged, whole)


# On a CPU a row's product has other bits elsewhere in its tile: there, rows stand where they stood.
CHUNKS = [(0, 1), (21, 41), (42, 43)] if DEVICE == "cpu" else [(0, 1), (15, 40), (43, 44)]


@pytest.mark.parametrize(("first", "last"), CHUNKS, ids=str)
def test_with_a_fixed_split_chunks_and_company_change_no_bit(first: int, last: int) -> None:
    options = op.AttentionOptions(split_keys=32)
    cache, q = cache_of(1, 64, torch.float32), numbers(44, 3, 64)
    rows = rows_of([(0, 44)])
    whole = op.paged_attention(q, cache, ones(1), rows, options)
    together = rows_of([(first, last - first), (5, 1)])
    tables = together.block_tables.clone()
    tables[0] = rows.block_tables[0, : tables.shape[1]]
    chunk = torch.cat([q[first:last], q[:1]])
    in_company = replace(together, block_tables=tables, max_context=90)
    result = op.paged_attention(chunk, cache, ones(1), in_company, options)
    assert torch.equal(result[:-1], whole[first:last])


def test_nothing_is_read_behind_the_context() -> None:
    """Other sequences' blocks, and the unused end of one's own, may hold anything."""
    lengths = [(20, 1), (0, 5)]
    (keys, values), rows = cache_of(1, 64, torch.float32), rows_of(lengths)
    q = numbers(6, 2, 64)
    clean = op.paged_attention(q, (keys, values), ones(1), rows)
    tables = rows.block_tables.tolist()
    for part in (keys, values):
        part[: NUM_BLOCKS - 3] = torch.nan
        part[tables[0][1], 5:] = torch.nan
        part[tables[1][0], 5:] = torch.nan
    assert torch.equal(op.paged_attention(q, (keys, values), ones(1), rows), clean)


def test_no_rows_and_odd_requests() -> None:
    cache, rows = cache_of(1, 64, torch.float32), rows_of([(20, 0), (3, 0)])
    assert op.paged_attention(numbers(0, 2, 64), cache, ones(1), rows).shape == (0, 2, 64)
    with pytest.raises(ValueError, match="splits of 32s"):
        op.paged_attention(
            numbers(0, 2, 64), cache, ones(1), rows, op.AttentionOptions(split_keys=33)
        )
    with pytest.raises(ValueError, match="do not divide"):
        op.paged_attention(numbers(0, 3, 64), cache_of(2, 64, torch.float32), ones(2), rows)


def test_decodes_are_split_to_fill_a_device() -> None:
    rows = rows_of([(160, 1)])
    output = torch.empty(1, 3, 64, device=DEVICE)
    plan = op._plan(output, 1, replace(rows, max_context=1 << 20), op.PLAIN)
    assert plan.is_split == (plan.grid[2] > 1)
    assert op._splits_that_fill(torch.device("cpu"), 1, 1 << 20) == 4
    assert op._splits_that_fill(torch.device("cpu"), 8, 1 << 20) == 1
    assert op._splits_that_fill(torch.device("cpu"), 1, 100) == 1
