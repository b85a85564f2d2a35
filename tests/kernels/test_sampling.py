"""Tokens drawn without a sort are those that the definition, which sorts, draws."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kernels.sampling.draw import Draw
from kernels.sampling.op import RowSampler
from kernels.sampling.reference import sample_reference
from kernels.threads.team import ThreadTeam

Logits = npt.NDArray[np.float32]
RNG = np.random.default_rng(11)
PARAMETERS = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in itertools.product(
        (1e-300, 0.7, 1.0, 50.0),
        (0, 1, 2, 40, 10**6),
        (1e-9, 0.5, 0.9, 0.999, 1.0),
        (0.0, 0.05, 1.0),
    )
]


def logits_of(kind: str, vocab_size: int) -> Logits:
    values = RNG.normal(0, 3, vocab_size).astype(np.float32)
    match kind:
        case "few values":
            return np.rint(values) + np.float32(0)
        case "zeros of both signs":
            return np.where(values > 0, np.float32(0), np.float32(-0.0))
        case "banned":
            values[RNG.random(vocab_size) < 0.6] = -np.inf
            values[vocab_size // 2] = 1.0
    return values


@pytest.fixture(scope="module")
def sampler_of(team: ThreadTeam) -> dict[int, RowSampler]:
    return {size: RowSampler(size, team) for size in (1, 7, 300, 5000)}


@pytest.mark.parametrize("vocab_size", [1, 7, 300, 5000])
@pytest.mark.parametrize("kind", ["plain", "few values", "zeros of both signs", "banned"])
def test_matches_reference(sampler_of: dict[int, RowSampler], kind: str, vocab_size: int) -> None:
    """All kinds of draws as rows of one call, in memory with gaps between rows."""
    padded = np.full((len(PARAMETERS), vocab_size + 3), np.nan, np.float32)
    logits = padded[:, :vocab_size]
    for row in logits:
        row[:] = logits_of(kind, vocab_size)
    draws = [Draw(uniform=float(RNG.random()), **parameters) for parameters in PARAMETERS]
    tokens = sampler_of[vocab_size].sample(logits, range(len(draws)), draws)
    expected = [sample_reference(row, draw) for row, draw in zip(logits, draws, strict=True)]
    assert tokens == expected


def test_draws_follow_the_distribution(sampler_of: dict[int, RowSampler]) -> None:
    logits = np.array([[1.0, 3.0, 2.0, 0.0, -1.0, -np.inf, 2.5]], np.float32)
    num, temperature = 8000, 1.3
    draws = [Draw((i + 0.5) / num, temperature, top_p=0.9) for i in range(num)]
    counts = Counter(sampler_of[7].sample(np.repeat(logits, num, 0), range(num), draws))
    weights = np.exp(logits[0].astype(np.float64) / temperature)
    kept = [1, 6, 2, 0]  # 0.86 of the mass without the last
    for token in range(7):
        share = weights[token] / weights[kept].sum() if token in kept else 0.0
        assert counts[token] == pytest.approx(share * num, abs=1.5)


def test_both_ends_of_the_uniform_numbers_are_kept_tokens(
    sampler_of: dict[int, RowSampler],
) -> None:
    logits = logits_of("plain", 300)[None]
    (likeliest,) = logits.argmax(-1)
    lowest, highest = Draw(0.0, top_k=3), Draw(1.0 - 2.0**-53, top_k=3)
    kept = sorted(np.argsort(-logits[0])[:3])
    assert sampler_of[300].sample(logits, [0, 0], [lowest, highest]) == [kept[0], kept[-1]]
    assert sampler_of[300].sample(logits, [0], [Draw(0.99, top_k=1)]) == [likeliest]


def test_a_draw_depends_on_no_other_row_nor_on_the_threads(
    new_team: Callable[[int], ThreadTeam],
) -> None:
    logits = RNG.normal(0, 3, (9, 300)).astype(np.float32)
    draws = [Draw(float(RNG.random()), top_p=0.95, top_k=50) for _ in range(9)]
    answers = []
    for num_threads in (1, 3):
        with new_team(num_threads) as team:
            sampler = RowSampler(300, team)
            answers.append(sampler.sample(logits, range(9), draws))
            alone = [sampler.sample(logits, [row], [draws[row]])[0] for row in range(9)]
            assert alone == answers[-1]
    assert answers[0] == answers[1]


def test_nothing_to_draw_and_what_does_not_fit(sampler_of: dict[int, RowSampler]) -> None:
    sampler = sampler_of[7]
    assert sampler.sample(np.zeros((0, 7), np.float32), [], []) == []
    with pytest.raises(ValueError, match="contiguous rows of 7"):
        sampler.sample(np.zeros((1, 8), np.float32), [0], [Draw(0.5)])
    with pytest.raises(ValueError, match="float32"):
        sampler.sample(np.zeros((1, 7)), [0], [Draw(0.5)])
    with pytest.raises(ValueError, match="expected 0 to 0"):
        sampler.sample(np.zeros((1, 7), np.float32), [1], [Draw(0.5)])
