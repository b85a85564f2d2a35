import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.sampling.reference import sample_reference
from replica.engine.messages import SamplingParams
from replica.engine.sampler import draw_of, sample, uniform

LOGITS = np.array([1.0, 3.0, 2.0, 0.0, -1.0], np.float32)


def params(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=1, **fields)


def draws(num: int, **fields: object) -> Counter[int]:
    return Counter(sample(LOGITS, params(seed=seed, **fields), position=3) for seed in range(num))


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": 1}], ids=str)
def test_no_freedom_is_the_likeliest_token(fields: dict[str, float]) -> None:
    assert draws(20, **fields) == {1: 20}


@pytest.mark.parametrize("temperature", [1e-8, 1e-300])
def test_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    assert draws(20, temperature=temperature) == {1: 20}


def test_draws_follow_the_distribution() -> None:
    num = 4000
    counts = draws(num)
    expected = torch.softmax(torch.from_numpy(LOGITS), -1) * num
    chi_square = sum((counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected))
    assert chi_square < 18.5  # 99.9th percentile at 4 degrees of freedom; seeds are fixed


def test_top_k_keeps_the_k_likeliest() -> None:
    assert set(draws(300, top_k=2, temperature=2.0)) == {1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = torch.softmax(torch.from_numpy(LOGITS), -1)
    just_one = float(probabilities[1])
    assert set(draws(300, top_p=just_one - 0.01)) == {1}
    assert set(draws(300, top_p=just_one + 0.01)) == {1, 2}


def test_top_p_beyond_the_first_candidates_still_reaches_it() -> None:
    flat = np.zeros(5000, np.float32)
    seen = {sample(flat, params(seed=s, top_p=0.99), 0) for s in range(300)}
    assert len(seen) > 200
    assert max(seen) > 1024


def test_min_p_drops_what_is_far_below_the_likeliest() -> None:
    assert set(draws(300, min_p=0.3, temperature=1.0)) == {1, 2}


def test_banned_tokens_are_never_drawn() -> None:
    logits = LOGITS.copy()
    logits[1] = -math.inf
    assert all(sample(logits, params(seed=s, temperature=2.0), 0) != 1 for s in range(200))


@given(
    values=st.lists(st.sampled_from([-math.inf, -3.0, -0.0, 0.0, 0.5, 2.0, 2.5]), max_size=40),
    temperature=st.sampled_from([1e-300, 0.3, 1.0, 20.0]),
    top_k=st.sampled_from([0, 2, 3, 20, 1000]),
    top_p=st.sampled_from([1e-6, 0.4, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 1 << 40),
)
def test_tokens_are_those_of_the_definition(values: list[float], seed: int, **fields: Any) -> None:
    """The one that the compiled sampler is tested against, too: backends draw alike."""
    logits = np.array([1.5, *values], np.float32)
    asked = params(seed=seed, **fields)
    assert sample(logits, asked, 5) == sample_reference(logits, draw_of(asked, 5))


def test_the_definition_holds_beyond_the_first_candidates() -> None:
    logits = np.random.default_rng(5).normal(0, 0.3, 3000).astype(np.float32)
    for seed in range(20):
        asked = params(seed=seed, top_p=0.9, temperature=2.0)
        assert sample(logits, asked, 5) == sample_reference(logits, draw_of(asked, 5))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 100_000))
def test_uniform_is_stateless_and_below_one(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, position)
    assert value != uniform(seed, position + 1)
