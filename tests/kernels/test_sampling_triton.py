"""Draws without a sort, against the definition that sorts; penalties, bias and logprobs."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from replica.engine.messages import SamplingParams
from replica.engine.sampler import sample as sample_on_cpu
from replica.engine.sampler import uniform
from tests.kernels.triton_runs import DEVICE, DTYPES, assert_near, numbers, poisoned_memory

op = pytest.importorskip("kernels.sampling.triton_op")
reference = pytest.importorskip("kernels.sampling.rows_reference")

# temperature, top_k, top_p, min_p
SETTINGS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "top-p-of-0": (1.0, 0, 0.0, 0.0),
    "top-k-of-1": (1.0, 1, 1.0, 0.0),
    "whole": (1.0, 0, 1.0, 0.0),
    "hot": (50.0, 0, 1.0, 0.0),
    "tiny-temperature": (1e-8, 0, 1.0, 0.0),
    "top-k": (1.0, 5, 1.0, 0.0),
    "top-k-of-all": (1.0, 10_000, 1.0, 0.0),
    "top-p": (1.0, 0, 0.8, 0.0),
    "tiny-top-p": (1.0, 0, 1e-9, 0.0),
    "min-p": (1.0, 0, 1.0, 0.1),
    "all": (0.7, 9, 0.9, 0.02),
}


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def draws_of(rows: list[tuple[float, int, float, float]], uniforms: list[float]) -> "op.Draws":
    temperatures, top_ks, top_ps, min_ps = zip(*rows, strict=True)

    def doubles(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=DEVICE)

    return op.Draws(
        temperatures=doubles(temperatures),
        top_ks=torch.tensor(top_ks, dtype=torch.int32, device=DEVICE),
        top_ps=doubles(top_ps),
        min_ps=doubles(min_ps),
        uniforms=doubles(uniforms),
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_what_the_cpus_sampler_draws(name: str) -> None:
    """Of the same numbers, so the same seed gives the same tokens on either device."""
    logits = 3 * numbers(2, 61)
    logits[:, 7] = -torch.inf
    temperature, top_k, top_p, min_p = SETTINGS[name]
    params = SamplingParams(
        max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=5
    )
    positions = range(2)
    draws = draws_of([SETTINGS[name]] * 2, [uniform(5, p) for p in positions])
    expected = [sample_on_cpu(logits[p].cpu().numpy(), params, p) for p in positions]
    assert op.sample(logits, draws).tolist() == expected
    assert reference.draw_reference(logits, draws).tolist() == expected


@pytest.mark.parametrize("draw", [0.0, 0.49, 0.51, 1 - 2**-53])
def test_equals_stand_in_the_order_of_their_ids(draw: float) -> None:
    """What top-k and top-p keep of several equals are the smallest ids, exactly so many."""
    logits = torch.zeros(3, 40, device=DEVICE)
    logits[:, 11] = 1.0
    draws = draws_of([(1.0, 4, 1.0, 0.0), (1.0, 0, 0.3, 0.0), (1.0, 0, 1.0, 0.0)], [draw] * 3)
    result = op.sample(logits, draws)
    assert result.tolist() == reference.draw_reference(logits, draws).tolist()
    assert int(result[0]) in (11, 0, 1, 2)


@pytest.mark.parametrize("vocab", [1, 2, 4096, 4099])
def test_vocabularies_of_any_size(vocab: int) -> None:
    logits = numbers(2, vocab)
    draws = draws_of([(1.0, 3, 0.9, 0.0), (0.0, 0, 1.0, 0.0)], [0.7, 0.7])
    assert op.sample(logits, draws).tolist() == reference.draw_reference(logits, draws).tolist()


def test_greedy_is_the_smallest_of_the_largest_and_rows_may_lie_apart() -> None:
    wide = numbers(3, 90)
    wide[:, 3] = wide[:, 33] = 9.0
    wide[2, :45] = -torch.inf
    draws = draws_of([(0.0, 0, 1.0, 0.0)] * 3, [0.0] * 3)
    expected = [3, 3, 0]
    for are_greedy in (False, True):
        tokens = op.sample(wide[:, :45], replace(draws, are_greedy=are_greedy))
        assert tokens.tolist() == expected
    assert op.sample(wide[:0], draws).shape == (0,)


def test_many_draws_follow_the_distribution() -> None:
    """Cut and uncut: frequencies of evenly spread numbers are the probabilities."""
    num_draws = 10
    logits = numbers(1, 8).expand(num_draws, 8)
    spread = [(i + 0.5) / num_draws for i in range(num_draws)]
    for setting in (SETTINGS["whole"], (1.0, 4, 1.0, 0.0)):
        tokens = op.sample(logits, draws_of([setting] * num_draws, spread))
        counts = np.bincount(tokens.cpu().numpy(), minlength=8)
        weights = torch.softmax(logits[0], 0).cpu()
        kept = weights.sort(descending=True).indices[: setting[1] or 8]
        expected = torch.zeros(8).index_put((kept,), weights[kept] / weights[kept].sum())
        assert np.abs(counts / num_draws - expected.numpy()).max() <= 1.01 / num_draws


@DTYPES
def test_penalties_match_their_definition(dtype: torch.dtype) -> None:
    logits = 3 * numbers(3, 50, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    penalties = op.Penalties(
        counts=torch.randint(0, 3, (3, 50), generator=generator, dtype=torch.int32).to(DEVICE),
        is_in_prompt=(torch.rand(3, 50, generator=generator) < 0.3).to(DEVICE),
        repetition=torch.tensor([1.0, 1.3, 0.7], device=DEVICE),
        presence=torch.tensor([0.0, 0.5, -0.5], device=DEVICE),
        frequency=torch.tensor([0.0, 0.2, 1.5], device=DEVICE),
    )
    expected = reference.penalize_reference(logits.float(), penalties)
    before = logits.clone()
    op.penalize_(logits, penalties)
    assert_near(logits, expected, dtype, factor=4)
    assert torch.equal(logits[0], before[0])


def test_bias_reaches_its_token_and_no_neighbour() -> None:
    """Ids outside the vocabulary, of the first and the last row: nobody's logit moves."""
    logits = numbers(3, 20)
    before = logits.clone()
    entries = [(0, 3, 2.5), (2, 19, -math.inf), (1, -1, 9.0), (1, 20, 9.0), (0, 2**31, 9.0)]
    rows, token_ids, values = (
        torch.tensor(part, device=DEVICE) for part in zip(*entries, strict=True)
    )
    op.bias_(logits, op.LogitBias(rows, token_ids, values.float()))
    assert logits[0, 3] == before[0, 3] + 2.5
    assert logits[2, 19] == -math.inf
    logits[0, 3], logits[2, 19] = before[0, 3], before[2, 19]
    assert torch.equal(logits, before)


@DTYPES
@pytest.mark.parametrize("vocab", [1, 37, 5000])
def test_logprobs_match_their_definition(vocab: int, dtype: torch.dtype) -> None:
    logits = 5 * numbers(3, vocab, dtype=dtype)
    logits[0, 0] = -torch.inf if vocab > 1 else 0.0
    ids = torch.tensor([[0, vocab - 1, vocab // 2]] * 3, device=DEVICE)
    expected = reference.logprobs_reference(logits.float(), ids)
    torch.testing.assert_close(op.logprobs(logits, ids), expected, rtol=1e-5, atol=1e-5)
    assert op.logprobs(logits, ids[:, :0]).shape == (3, 0)


def test_all_logprobs_sum_to_one() -> None:
    logits = 4 * numbers(2, 33)
    every = torch.arange(33, device=DEVICE).expand(2, 33)
    total = op.logprobs(logits, every).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(2, device=DEVICE))
