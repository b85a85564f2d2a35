"""Prompt estimates: safe before anything is known, and learned from what was settled."""

import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prompt_corpus import Chat, chats
from contracts.names import tenant_id
from gateway.admission.answer_lengths import AnswerLengths
from gateway.admission.cost import CostModel
from gateway.admission.estimate import TokenEstimator, completion_prompt, text_prompt
from gateway.admission.prompt_mix import NUM_MIXES, mix_of
from gateway.admission.quantile import QuantileTable

ACME = tenant_id("acme")
MODEL = "model-a"
_WORD = re.compile(r" ?[a-zA-Z]+|\s+|.", re.DOTALL)


def tokens_of(chat: Chat) -> int:
    """A rule as uneven as real tokenizers are: words in pieces, other scripts nearly by bytes."""
    num_tokens = 3.0
    for message in chat.messages:
        num_tokens += 4
        for word in _WORD.findall(message["content"]):
            num_tokens += math.ceil(len(word) / 8) if word.isascii() else len(word.encode()) * 0.5
    return math.ceil(num_tokens)


def errors(estimator: TokenEstimator, judged: list[Chat]) -> list[float]:
    return [
        estimator.estimate(MODEL, text_prompt(chat.json)) / tokens_of(chat) - 1 for chat in judged
    ]


def test_a_new_process_estimates_on_the_safe_side() -> None:
    found = errors(TokenEstimator(0.95), list(chats(500, seed=3)))
    assert sum(error < 0 for error in found) <= 0.02 * len(found)


def test_what_is_learned_is_too_low_as_rarely_as_asked_and_closer_than_the_safe_ratio() -> None:
    estimator, judged = TokenEstimator(0.95), list(chats(1_000, seed=3))
    cold = errors(estimator, judged)
    for chat in chats(4_000, seed=4):
        estimator.learn(MODEL, text_prompt(chat.json), tokens_of(chat))
    warm = errors(estimator, judged)
    assert sum(error < 0 for error in warm) <= 0.08 * len(warm)
    assert sum(warm) < 0.5 * sum(cold)


def test_models_learn_apart() -> None:
    estimator = TokenEstimator(0.95)
    prompt = text_prompt(b'[{"role":"user","content":"' + b"word " * 50 + b'"}]')
    before = estimator.estimate("model-b", prompt)
    for _ in range(100):
        estimator.learn("model-a", prompt, 55)
    assert estimator.estimate("model-a", prompt) < before
    assert estimator.estimate("model-b", prompt) == before


def test_an_unseen_size_is_judged_by_others_of_its_kind() -> None:
    estimator = TokenEstimator(0.95)
    short, long = (text_prompt(b'"' + b"some words " * n + b'"') for n in (60, 2_000))
    before = estimator.estimate(MODEL, long)
    for _ in range(200):
        estimator.learn(MODEL, short, 130)
    assert 4_000 <= estimator.estimate(MODEL, long) < before


def test_a_few_odd_prompts_move_an_estimate_within_bounds() -> None:
    estimator, prompt = TokenEstimator(0.95), text_prompt(b'"' + b"some words " * 100 + b'"')
    for _ in range(500):
        estimator.learn(MODEL, prompt, 220)
    usual = estimator.estimate(MODEL, prompt)
    for _ in range(5):
        estimator.learn(MODEL, prompt, 10**8)
    assert estimator.estimate(MODEL, prompt) < 1.2 * usual


@pytest.mark.parametrize(
    ("prompt", "num_tokens"),
    [
        (b"[1,2,3]", 3),
        (b"[ 15 , 9 ]", 2),
        (b"[[1,2],[3,4,5]]", 5),
        (b"[" + b"7," * 9_999 + b"7]", 10_000),
    ],
    ids=["list", "spaces", "nested", "long"],
)
def test_token_ids_are_counted(prompt: bytes, num_tokens: int) -> None:
    """One more for the token that a model may put in front."""
    estimator = TokenEstimator(0.95)
    assert estimator.estimate(MODEL, completion_prompt(prompt)) == num_tokens + 1
    estimator.learn(MODEL, completion_prompt(prompt), 1)
    assert estimator.estimate(MODEL, completion_prompt(prompt)) == num_tokens + 1


@pytest.mark.parametrize("prompt", [b'["a","b"]', b'"text"', b"[]", b'[ "a"]'])
def test_text_is_estimated(prompt: bytes) -> None:
    assert completion_prompt(prompt).mix is not None


@given(st.binary(min_size=1, max_size=2_000))
def test_any_bytes_have_a_mix(text: bytes) -> None:
    assert 0 <= mix_of(text) < NUM_MIXES


@given(st.text(min_size=1, max_size=400), st.booleans())
def test_any_text_has_an_estimate(text: str, is_escaped: bool) -> None:
    prompt = text_prompt(json.dumps(text, ensure_ascii=is_escaped).encode())
    estimator = TokenEstimator(0.95)
    estimator.learn(MODEL, prompt, 1 + len(text))
    assert estimator.estimate(MODEL, prompt) >= 1


def test_scripts_differ() -> None:
    texts = ["plain words", "простые слова", "简单的话", "쉬운 말로", "शब्दों में", "def f(x): # {}"]
    assert len({mix_of(json.dumps(t * 9, ensure_ascii=False).encode()) for t in texts}) == 6
    assert len({mix_of(json.dumps(t * 9).encode()) for t in texts[:4]}) == 4


def test_a_quantile_is_found() -> None:
    source, table = random.Random(5), QuantileTable(1, 0.95)
    for _ in range(20_000):
        table.observe(0, source.lognormvariate(0, 0.5), first_guess=1.0)
    expected = math.exp(0.5 * 1.645)
    assert table.guess(0) == pytest.approx(expected, rel=0.15)


# Answers


def test_an_answer_is_as_long_as_usual_and_no_longer_than_asked() -> None:
    costs = CostModel(0.95)
    for _ in range(100):
        costs.learn_answer(ACME, MODEL, 40, at_most=1_000)
    assert costs.answer_tokens(ACME, MODEL, 1_000) < 60
    assert costs.answer_tokens(ACME, MODEL, 7) == 7, "never more than was asked for"
    assert costs.answer_tokens(tenant_id("other"), MODEL, 1_000) == 1_000
    assert costs.answer_tokens(ACME, "model-b", 1_000) == 1_000


def test_few_answers_say_nothing() -> None:
    lengths = AnswerLengths()
    for _ in range(19):
        lengths.learn(ACME, MODEL, 5, at_most=100)
    assert lengths.expected_tokens(ACME, MODEL, 100) == 100
    lengths.learn(ACME, MODEL, 5, at_most=100)
    assert 5 <= lengths.expected_tokens(ACME, MODEL, 100) <= 6


def test_an_answer_that_was_cut_says_nothing_of_how_short_answers_are() -> None:
    lengths = AnswerLengths()
    for _ in range(50):
        lengths.learn(ACME, MODEL, 1, at_most=1)
    assert lengths.expected_tokens(ACME, MODEL, 500) == 500
    for _ in range(30):
        lengths.learn(ACME, MODEL, 200, at_most=1_000)
    expected = lengths.expected_tokens(ACME, MODEL, 500)
    for _ in range(200):
        lengths.learn(ACME, MODEL, 1, at_most=1)
    assert lengths.expected_tokens(ACME, MODEL, 500) == expected >= 150


def test_an_answer_that_was_cut_late_says_that_answers_are_longer() -> None:
    lengths = AnswerLengths()
    for _ in range(30):
        lengths.learn(ACME, MODEL, 20, at_most=1_000)
    assert lengths.expected_tokens(ACME, MODEL, 1_000) < 30
    for _ in range(200):
        lengths.learn(ACME, MODEL, 300, at_most=300)
    assert lengths.expected_tokens(ACME, MODEL, 1_000) >= 290


def test_one_answer_in_twenty_is_longer() -> None:
    source, lengths = random.Random(6), AnswerLengths()
    for _ in range(5_000):
        lengths.learn(ACME, MODEL, source.randrange(1, 201), at_most=10_000)
    assert 175 <= lengths.expected_tokens(ACME, MODEL, 10_000) <= 205


def test_memory_is_bounded_by_forgetting_the_first() -> None:
    lengths = AnswerLengths()
    for number in range(9_000):
        for _ in range(20 if number in (0, 8_999) else 1):
            lengths.learn(ACME, f"model-{number}", 5, at_most=100)
    assert lengths.expected_tokens(ACME, "model-0", 100) == 100
    assert lengths.expected_tokens(ACME, "model-8999", 100) < 10
