"""Biases move the draw, on every backend, and not what is told of the model's own opinion."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.replica.replica_process import ReplicaProcess

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def answer(replica: ReplicaProcess, **fields: object) -> Any:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 8, "return_token_ids": True}
    given = replica.post("/v1/chat/completions", body | fields)
    assert given.status == 200, given.body
    return given.json["choices"][0]


def test_a_banned_token_is_never_drawn_and_a_wanted_one_always(replica: ReplicaProcess) -> None:
    first, *_ = plain = answer(replica)["token_ids"]
    assert first not in answer(replica, logit_bias={str(first): -100})["token_ids"]
    wanted = {"logit_bias": {"42": 100}, "ignore_eos": True}
    assert answer(replica, **wanted)["token_ids"] == [42] * 8
    assert answer(replica, **wanted, temperature=1.0)["token_ids"] == [42] * 8
    assert answer(replica, logit_bias={})["token_ids"] == plain
    assert answer(replica, logit_bias={"42": 0})["token_ids"] == plain


def test_an_end_that_is_banned_stays_banned_however_much_it_is_wanted(
    replica: ReplicaProcess,
) -> None:
    choice = answer(replica, logit_bias={"2": 100}, min_tokens=3)
    assert len(choice["token_ids"]) == 4
    assert choice["token_ids"][-1] == 2
    assert choice["finish_reason"] == "stop"


def test_what_is_told_is_the_model_s_own_opinion(replica: ReplicaProcess) -> None:
    asked = {"logprobs": True, "top_logprobs": 1}
    (plain, *_) = answer(replica, **asked)["logprobs"]["content"]
    biased = answer(replica, **asked, logit_bias={"42": 100}, max_tokens=1)["logprobs"]["content"]
    assert biased[0]["top_logprobs"] == plain["top_logprobs"]
    assert biased[0]["logprob"] < plain["logprob"]


def test_neighbours_in_a_batch_are_untouched(replica: ReplicaProcess) -> None:
    plain = answer(replica, max_tokens=40, ignore_eos=True)["token_ids"]
    biases: list[dict[str, int]] = [{}, {"42": 100}] * 3
    with ThreadPoolExecutor(len(biases)) as pool:
        answers = list(
            pool.map(
                lambda bias: answer(replica, logit_bias=bias, max_tokens=40, ignore_eos=True),
                biases,
            )
        )
    assert [a["token_ids"] for a in answers] == [plain, [42] * 40] * 3
