"""Decodes and prefill chunks over scattered blocks, against a dense reference."""

import itertools
from dataclasses import replace

import pytest
import torch

from kernels.paged_attention.formats import ALL_POSITIONS, AttentionSpecialization, KvFormat
from kernels.paged_attention.op import paged_attention
from kernels.paged_attention.plan import Segment
from kernels.paged_attention.reference import (
    dense_keys,
    dense_values,
    paged_attention_reference,
)
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel

NUM_BLOCKS = 64
Cache = tuple[torch.Tensor, torch.Tensor]


def random_cache(spec: AttentionSpecialization, num_kv_heads: int = 2) -> Cache:
    dtype = torch.float32 if spec.kv_format is KvFormat.FLOAT32 else torch.bfloat16
    generator = torch.Generator().manual_seed(spec.head_dim)
    keys = (NUM_BLOCKS, num_kv_heads, spec.head_dim, spec.block_size)
    values = (NUM_BLOCKS, num_kv_heads, spec.block_size, spec.head_dim)
    return (
        torch.randn(keys, generator=generator).to(dtype),
        torch.randn(values, generator=generator).to(dtype),
    )


def random_int8_cache(spec: AttentionSpecialization, num_kv_heads: int = 2) -> Cache:
    """As it is stored: codes, then scales."""
    generator = torch.Generator().manual_seed(spec.head_dim)

    def part() -> torch.Tensor:
        size = (NUM_BLOCKS, num_kv_heads, spec.scales_offset_bytes)
        codes = torch.randint(-127, 128, size, dtype=torch.int8, generator=generator)
        scales = 0.02 * torch.rand(*size[:2], spec.block_size, generator=generator)
        return torch.cat([codes.view(torch.uint8), scales.view(torch.uint8)], dim=-1)

    return part(), part()


def segments_of(lengths: list[tuple[int, int]], block_size: int = 16) -> list[Segment]:
    """(start, tokens) of each; blocks are handed out from the end, as a used pool would."""
    free = iter(range(NUM_BLOCKS - 1, -1, -1))
    segments, row = [], 0
    for start, num_tokens in lengths:
        num_blocks = -(-(start + num_tokens) // block_size)
        segments.append(Segment(row, num_tokens, start, list(itertools.islice(free, num_blocks))))
        row += num_tokens
    return segments


def queries(
    spec: AttentionSpecialization, segments: list[Segment], kv_heads: int = 2
) -> torch.Tensor:
    num_rows = sum(s.num_tokens for s in segments)
    shape = (num_rows, kv_heads * spec.group_size, spec.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(9))


def expected(
    q: torch.Tensor, cache: Cache, segments: list[Segment], window: int = ALL_POSITIONS
) -> torch.Tensor:
    return torch.cat(
        [
            paged_attention_reference(
                q[s.first_row : s.first_row + s.num_tokens], *cache, s.block_table, s.start, window
            )
            for s in segments
        ]
    )


MIXED = [(0, 1), (15, 1), (16, 1), (63, 1), (64, 1), (200, 1), (0, 17), (61, 40)]


SHAPES = {
    "64-of-3": (KvFormat.FLOAT32, 64, 3),
    "64-of-1": (KvFormat.FLOAT32, 64, 1),
    "96-of-4": (KvFormat.FLOAT32, 96, 4),
    "128-of-8": (KvFormat.FLOAT32, 128, 8),
    "64-of-3-bfloat16": (KvFormat.BFLOAT16, 64, 3),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(shape: str, level: FeatureLevel, team: ThreadTeam) -> None:
    spec = AttentionSpecialization(level, *SHAPES[shape], block_size=16)
    cache, segments = random_cache(spec), segments_of(MIXED)
    q = queries(spec, segments)
    torch.testing.assert_close(
        paged_attention(spec, q, cache, segments, team),
        expected(q, cache, segments),
        rtol=1e-5,
        atol=2e-6,
    )


@pytest.mark.parametrize("block_size", [16, 32])
def test_int8_keys_and_values_mean_their_codes_times_scales(
    block_size: int, level: FeatureLevel, team: ThreadTeam
) -> None:
    spec = AttentionSpecialization(level, KvFormat.INT8, 64, 3, block_size)
    (keys, values), segments = random_int8_cache(spec), segments_of(MIXED, block_size)
    q = queries(spec, segments)
    dense = (dense_keys(keys, spec), dense_values(values, spec))
    torch.testing.assert_close(
        paged_attention(spec, q, (keys, values), segments, team),
        expected(q, dense, segments),
        rtol=1e-5,
        atol=2e-6,
    )


def test_scales_beyond_the_context_do_not_leak(level: FeatureLevel, team: ThreadTeam) -> None:
    spec = AttentionSpecialization(level, KvFormat.INT8, 64, 3, 16)
    keys, values = random_int8_cache(spec)
    segments = segments_of([(20, 1), (0, 5)])
    q = queries(spec, segments)
    clean = paged_attention(spec, q, (keys, values), segments, team)
    for segment in segments:
        end = segment.start + segment.num_tokens
        for part in (keys, values):
            scales = part[segment.block_table[-1], :, spec.scales_offset_bytes :]
            scales.view(torch.float32)[:, end % 16 :] = torch.nan
    assert torch.equal(paged_attention(spec, q, (keys, values), segments, team), clean)


def test_blocks_of_32_tokens(level: FeatureLevel, team: ThreadTeam) -> None:
    spec = AttentionSpecialization(level, KvFormat.FLOAT32, 64, 3, 32)
    cache, segments = random_cache(spec), segments_of(MIXED, 32)
    q = queries(spec, segments)
    result = paged_attention(spec, q, cache, segments, team)
    torch.testing.assert_close(result, expected(q, cache, segments), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("window", [None, 300])
def test_threads_share_the_spans_of_few_decodes_without_a_change_of_bits(
    window: int | None, level: FeatureLevel, team: ThreadTeam
) -> None:
    """One sequence of one KV head and a long context: alone, beside others, and as a prefill."""
    spec = replace(exact_spec(level), has_window=window is not None)
    window = ALL_POSITIONS if window is None else window
    cache, segments = random_cache(spec, 1), segments_of([(0, 720), (20, 1), (30, 1), (40, 1)])
    long, *others = segments
    q = queries(spec, segments, 1)
    whole = paged_attention(spec, q[:720], cache, [long], team, window)
    reference = expected(q[:720], cache, [long], window)
    torch.testing.assert_close(whole, reference, rtol=1e-5, atol=2e-6)
    for position in (719, 512, 511, 300, 255):
        decode = Segment(0, 1, position, long.block_table)
        rows = q[position : position + 1]
        assert torch.equal(
            paged_attention(spec, rows, cache, [decode], team, window)[0], whole[position]
        )
        company = [decode, *(replace(s, first_row=s.first_row - 719) for s in others)]
        together = paged_attention(spec, torch.cat([rows, q[720:]]), cache, company, team, window)
        assert torch.equal(together[0], whole[position])


@pytest.mark.parametrize("window", [1, 16, 61, 70, 1000])
def test_a_window_hides_what_lies_before_it(
    window: int, level: FeatureLevel, team: ThreadTeam
) -> None:
    """Whole chunks before it, a part of one, and nothing at all; decodes, and rows of one tile."""
    spec = replace(exact_spec(level), has_window=True)
    cache, segments = random_cache(spec), segments_of(MIXED)
    q = queries(spec, segments)
    result = paged_attention(spec, q, cache, segments, team, window)
    reference = expected(q, cache, segments, window)
    torch.testing.assert_close(result, reference, rtol=1e-5, atol=2e-6)


def test_a_windows_bits_do_not_depend_on_the_chunk(level: FeatureLevel, team: ThreadTeam) -> None:
    spec = replace(exact_spec(level), has_window=True)
    cache, (whole,) = random_cache(spec), segments_of([(0, 150)])
    q = queries(spec, [whole])
    together = paged_attention(spec, q, cache, [whole], team, 37)
    for first, last in [(0, 1), (0, 100), (100, 101), (33, 70), (117, 150), (149, 150)]:
        part = Segment(0, last - first, first, whole.block_table)
        chunk = paged_attention(spec, q[first:last], cache, [part], team, 37)
        assert torch.equal(chunk, together[first:last]), (first, last)


def test_a_window_needs_a_specialization_that_has_one(team: ThreadTeam) -> None:
    spec = exact_spec(FeatureLevel.PORTABLE)
    cache, segments = random_cache(spec), segments_of([(0, 1)])
    with pytest.raises(ValueError, match="window 8"):
        paged_attention(spec, queries(spec, segments), cache, segments, team, 8)


def exact_spec(level: FeatureLevel) -> AttentionSpecialization:
    return AttentionSpecialization(level, KvFormat.FLOAT32, 64, 3, 16)


def test_a_token_has_the_same_bits_decoded_alone_and_in_any_chunk(
    level: FeatureLevel, team: ThreadTeam
) -> None:
    spec = exact_spec(level)
    cache, (whole,) = random_cache(spec), segments_of([(0, 150)])
    q = queries(spec, [whole])
    together = paged_attention(spec, q, cache, [whole], team)
    for first, last in [(0, 1), (0, 100), (100, 101), (33, 70), (117, 150), (149, 150)]:
        part = Segment(0, last - first, first, whole.block_table)
        chunk = paged_attention(spec, q[first:last], cache, [part], team)
        assert torch.equal(chunk, together[first:last]), (first, last)


def test_a_row_does_not_depend_on_the_batch(level: FeatureLevel, team: ThreadTeam) -> None:
    spec = exact_spec(level)
    cache, segments = random_cache(spec), segments_of(MIXED)
    q = queries(spec, segments)
    together = paged_attention(spec, q, cache, segments, team)
    for segment in reversed(segments):
        rows = slice(segment.first_row, segment.first_row + segment.num_tokens)
        alone = Segment(0, segment.num_tokens, segment.start, segment.block_table)
        assert torch.equal(paged_attention(spec, q[rows], cache, [alone], team), together[rows])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
def test_what_lies_beyond_the_context_does_not_leak(
    poison: float, level: FeatureLevel, team: ThreadTeam
) -> None:
    spec = exact_spec(level)
    keys, values = random_cache(spec)
    segments = segments_of([(20, 1), (0, 5)])
    q = queries(spec, segments)
    clean = paged_attention(spec, q, (keys, values), segments, team)
    for segment in segments:
        end = segment.start + segment.num_tokens
        keys[segment.block_table[-1], :, :, end % 16 :] = poison
        values[segment.block_table[-1], :, end % 16 :] = poison
    unused = [b for b in range(NUM_BLOCKS) if all(b not in s.block_table for s in segments)]
    keys[unused], values[unused] = poison, poison
    assert torch.equal(paged_attention(spec, q, (keys, values), segments, team), clean)


def test_large_scores_do_not_overflow(team: ThreadTeam) -> None:
    spec = exact_spec(FeatureLevel.PORTABLE)
    keys, values = random_cache(spec)
    segments = segments_of([(99, 1), (10, 30)])
    q = 1000 * queries(spec, segments)
    result = paged_attention(spec, q, (keys, values), segments, team)
    reference = expected(q, (keys, values), segments)
    torch.testing.assert_close(result, reference, rtol=1e-3, atol=1e-3)


def test_shapes_without_whole_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 80"):
        AttentionSpecialization(FeatureLevel.AVX512, KvFormat.FLOAT32, 80, 1, 16)
    with pytest.raises(ValueError, match="block size 8"):
        AttentionSpecialization(FeatureLevel.AVX512, KvFormat.FLOAT32, 64, 1, 8)
