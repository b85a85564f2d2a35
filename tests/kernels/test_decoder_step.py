"""Whole steps over mixed batches against a dense float32 forward pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.model import DecoderShape, DecoderWeights, KvCache, LayerWeights
from kernels.decoder_step.op import DecoderStep, StepResult
from kernels.decoder_step.reference import DecoderReference
from kernels.linear.formats import ActivationFormat, WeightFormat
from kernels.linear.packing import PackedWeight, pack_float32, pack_gguf
from kernels.paged_attention.formats import KvFormat
from kernels.paged_attention.plan import Segment
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel

BLOCK_SIZE = 16
NUM_BLOCKS = 64
MAX_ROWS = 160
TINY = DecoderShape(2, 96, 128, 6, 2, 64, 100, 1e-5)  # a vocabulary that is not whole tiles
Logits = npt.NDArray[np.float32]


def tiny_weights(weight_format: WeightFormat = WeightFormat.Q4_1) -> DecoderWeights:
    generator = np.random.default_rng(7)

    def matrix(out_features: int, in_features: int, kind: WeightFormat) -> PackedWeight:
        dense = generator.standard_normal((out_features, in_features)).astype(np.float32) * 0.1
        if kind is WeightFormat.FLOAT32:
            return pack_float32(dense)
        quantized = gguf.quants.quantize(dense, gguf.GGMLQuantizationType[kind.name])
        return pack_gguf(quantized, kind)

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=generator.uniform(0.5, 1.5, 96).astype(np.float32),
            qkv=matrix(TINY.qkv_size, 96, weight_format),
            output=matrix(96, 384, weight_format),
            post_norm=generator.uniform(0.5, 1.5, 96).astype(np.float32),
            gate_up=matrix(256, 96, weight_format),
            down=matrix(96, 128, weight_format),
        )

    embedding = matrix(100, 96, WeightFormat.Q8_0)
    angles = np.arange(200.0)[:, None] * 1e4 ** -(np.arange(32) / 32)[None, :]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    norm = np.ones(96, np.float32)
    return DecoderWeights(embedding, [layer(), layer()], norm, embedding, cos, sin)


@dataclass
class Sequences:
    """Hands out blocks and builds batches: what an engine does, in the small."""

    step: DecoderStep
    tables: dict[str, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(NUM_BLOCKS - 1, 0, -1)))

    def run(self, *chunks: tuple[str, Sequence[int], int]) -> StepResult:
        """(name, token ids, position of the first) of each; every row is sampled."""
        token_ids, positions, slots, segments = [], [], [], []
        for name, tokens, start in chunks:
            table = self.tables.setdefault(name, [])
            end = start + len(tokens)
            while len(table) * BLOCK_SIZE < end:
                table.append(self.free.pop())
            segments.append(Segment(len(token_ids), len(tokens), start, tuple(table)))
            token_ids += tokens
            positions += range(start, end)
            slots += [
                table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, end)
            ]
        rows = list(range(len(token_ids)))
        return self.step.run(StepBatch(token_ids, positions, slots, segments, rows))

    def logits(self, *chunks: tuple[str, Sequence[int], int]) -> Logits:
        return self.run(*chunks).logits.copy()


MakeSequences = Callable[..., Sequences]


@pytest.fixture
def tiny(team: ThreadTeam, level: FeatureLevel) -> Sequences:
    return make(TINY, tiny_weights(), team, level)


def make(
    shape: DecoderShape,
    weights: DecoderWeights,
    team: ThreadTeam,
    level: FeatureLevel | None = None,
    kv_format: KvFormat = KvFormat.FLOAT32,
    activation_format: ActivationFormat = ActivationFormat.FLOAT32,
) -> Sequences:
    cache = KvCache(shape, kv_format, NUM_BLOCKS, BLOCK_SIZE)
    step = DecoderStep(
        shape,
        weights,
        cache,
        team,
        max_rows=MAX_ROWS,
        max_sampled_rows=MAX_ROWS,
        activation_format=activation_format,
        level=level,
    )
    return Sequences(step)


def tokens(count: int, seed: int = 0, vocab_size: int = TINY.vocab_size) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


def reference(shape: DecoderShape, weights: DecoderWeights, token_ids: list[int]) -> torch.Tensor:
    return DecoderReference(shape, weights).logits(torch.tensor(token_ids))


def assert_close(actual: Logits, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight_format", [WeightFormat.Q4_1, WeightFormat.FLOAT32], ids=str)
def test_a_prefill_gives_the_references_logits(
    weight_format: WeightFormat, team: ThreadTeam
) -> None:
    weights = tiny_weights(weight_format)
    ids = tokens(70)
    sequences = make(TINY, weights, team)
    assert_close(sequences.logits(("a", ids, 0)), reference(TINY, weights, ids))


def test_chunks_and_decodes_of_several_sequences_share_a_step(tiny: Sequences) -> None:
    weights = tiny_weights()
    a, b, c = tokens(75, 1), tokens(40, 2), tokens(20, 3)
    tiny.run(("a", a[:65], 0), ("b", b[:1], 0))
    mixed = tiny.logits(("a", a[65:66], 65), ("c", c, 0), ("b", b[1:30], 1))
    expected = [
        reference(TINY, weights, a[:66])[65:],
        reference(TINY, weights, c),
        reference(TINY, weights, b[:30])[1:],
    ]
    assert_close(mixed, torch.cat(expected))


def test_a_rows_bits_depend_on_nothing_but_its_context(tiny: Sequences) -> None:
    """Batch of 1 to 64, place in the batch, chunking, decode or prefill: all the same."""
    ids = tokens(50, 4)
    whole = tiny.logits(("whole", ids, 0))
    one_by_one = [tiny.logits(("single", ids[i : i + 1], i)) for i in range(50)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), whole)
    for size in (2, 7, 13, 33, 64):
        others = tokens(size - 1, size)
        chunks = [(f"{size}/{i}", [other], 0) for i, other in enumerate(others[:20])]
        first = len(chunks) // 2
        chunks.insert(first, (f"{size}", ids, 0))
        logits = tiny.logits(*chunks)
        np.testing.assert_array_equal(logits[first : first + 50], whole)
        for name, *_ in chunks:
            tiny.free += tiny.tables.pop(name)


def test_the_best_token_comes_with_the_logits(tiny: Sequences) -> None:
    result = tiny.run(("a", tokens(9), 0))
    np.testing.assert_array_equal(result.best, result.logits.argmax(-1))
    assert result.is_finite.all()


def test_a_broken_sequence_is_told_apart_and_leaves_its_neighbours_alone(
    team: ThreadTeam, level: FeatureLevel
) -> None:
    weights = tiny_weights()
    clean = make(TINY, weights, team, level).logits(("a", tokens(5), 0), ("b", [7, 8], 0))
    broken = np.array(weights.cos)
    broken[60] = np.nan
    sequences = make(TINY, replace(weights, cos=broken), team, level)
    sequences.run(("bad", tokens(60, 9), 0))
    result = sequences.run(("a", tokens(5), 0), ("bad", [3], 60), ("b", [7, 8], 0))
    assert result.is_finite.tolist() == [True] * 5 + [False] + [True] * 2
    np.testing.assert_array_equal(result.logits[[0, 1, 2, 3, 4, 6, 7]], clean)


@pytest.mark.parametrize("kv_format", [KvFormat.BFLOAT16, KvFormat.INT8], ids=str)
def test_a_rounded_cache_stays_near(kv_format: KvFormat, team: ThreadTeam) -> None:
    weights, ids = tiny_weights(), tokens(70)
    sequences = make(TINY, weights, team, kv_format=kv_format)
    logits = torch.from_numpy(sequences.logits(("a", ids, 0)))
    torch.testing.assert_close(logits, reference(TINY, weights, ids), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("weight_format", [WeightFormat.Q4_1, WeightFormat.Q8_0], ids=str)
def test_int8_activations_stay_near(
    weight_format: WeightFormat, level: FeatureLevel, team: ThreadTeam
) -> None:
    """Every linear's rows lose their eighth bit; a wrong scale or place would lose all."""
    weights, ids = tiny_weights(weight_format), tokens(70)
    sequences = make(TINY, weights, team, level, activation_format=ActivationFormat.INT8)
    logits = torch.from_numpy(sequences.logits(("a", ids, 0)))
    expected = reference(TINY, weights, ids)
    assert (logits - expected).pow(2).mean() < 1e-3 * expected.pow(2).mean()


def test_fast_rows_depend_on_nothing_but_their_context(
    level: FeatureLevel, team: ThreadTeam
) -> None:
    """As exact ones: int8 activations, int8 keys and values."""
    sequences = make(TINY, tiny_weights(), team, level, KvFormat.INT8, ActivationFormat.INT8)
    ids = tokens(50, 4)
    whole = sequences.logits(("whole", ids, 0))
    one_by_one = [sequences.logits(("single", ids[i : i + 1], i)) for i in range(50)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), whole)
    others = [(f"other {i}", [i], 0) for i in range(20)]
    company = sequences.logits(*others[:7], ("again", ids, 0), *others[7:])
    np.testing.assert_array_equal(company[7:57], whole)


def test_int8_activations_do_not_hide_a_broken_sequence(team: ThreadTeam) -> None:
    weights = tiny_weights()
    broken = np.array(weights.cos)
    broken[30] = np.nan
    sequences = make(
        TINY,
        replace(weights, cos=broken),
        team,
        kv_format=KvFormat.INT8,
        activation_format=ActivationFormat.INT8,
    )
    result = sequences.run(("good", tokens(5), 0), ("bad", tokens(31, 9), 0))
    assert result.is_finite[:5].all()
    assert not result.is_finite[35]


def test_an_empty_batch_is_a_step_too(tiny: Sequences) -> None:
    assert tiny.run().logits.shape == (0, TINY.vocab_size)


@pytest.mark.parametrize("kv_format", KvFormat)
def test_blocks_are_seen_as_bytes(kv_format: KvFormat, team: ThreadTeam) -> None:
    cache = KvCache(TINY, kv_format, 4, BLOCK_SIZE)
    weights = tiny_weights()
    step = DecoderStep(TINY, weights, cache, team, max_rows=4, max_sampled_rows=4)
    step.run(StepBatch([1], [0], [3 * 16], [Segment(0, 1, 0, (3,))], [0]))
    for part in cache.block_bytes():
        assert part[3].any()
        assert not part[:3].any()


WRONG = {
    "token": StepBatch([100], [0], [16], [Segment(0, 1, 0, (1,))], [0]),
    "position": StepBatch([1], [200], [16], [Segment(0, 1, 0, (1,))], [0]),
    "slot": StepBatch([1], [0], [64 * 16], [Segment(0, 1, 0, (1,))], [0]),
    "block": StepBatch([1], [0], [16], [Segment(0, 1, 0, (64,))], [0]),
    "sampled row": StepBatch([1], [0], [16], [Segment(0, 1, 0, (1,))], [1]),
    "too short": StepBatch([1], [16], [16], [Segment(0, 1, 16, (1,))], [0]),
    "outside the rows": StepBatch([1], [0], [16], [Segment(0, 2, 0, (1,))], [0]),
    "at most": StepBatch([1] * 200, [0] * 200, [16] * 200, [], []),
    "for each token": StepBatch([1], [], [], [], []),
}


@pytest.mark.parametrize(("message", "batch"), WRONG.items(), ids=WRONG)
def test_batches_out_of_range_are_refused(message: str, batch: StepBatch, team: ThreadTeam) -> None:
    with pytest.raises(ValueError, match=message):
        make(TINY, tiny_weights(), team).step.run(batch)


def test_weights_of_other_shapes_or_of_several_formats_are_refused() -> None:
    weights = tiny_weights()
    with pytest.raises(ValueError, match="expected 3 layers"):
        weights.check(TINY._replace(num_layers=3))
    with pytest.raises(ValueError, match="qkv: expected"):
        weights.check(TINY._replace(num_kv_heads=6))
    mixed = [weights.layers[0], tiny_weights(WeightFormat.FLOAT32).layers[0]]
    with pytest.raises(ValueError, match="one weight format"):
        replace(weights, layers=mixed).check(TINY)


def test_the_published_model_gives_the_references_logits(
    smollm2: tuple[DecoderShape, DecoderWeights], team: ThreadTeam
) -> None:
    """Whole prefill, then decodes; the reference is float32 on the dequantized weights."""
    shape, weights = smollm2
    ids = tokens(96, 5, shape.vocab_size)
    sequences = make(shape, weights, team)
    prefill = sequences.logits(("a", ids[:80], 0))
    decoded = [sequences.logits(("a", ids[i : i + 1], i)) for i in range(80, 96)]
    logits = np.concatenate([prefill, *decoded])
    expected = reference(shape, weights, ids)
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0.0, atol=1e-3)
    assert (logits.argmax(-1) == expected.argmax(-1).numpy()).all()
