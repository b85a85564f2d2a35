"""Logprobs are the model's own, one entry per counted token, and the same streamed and whole."""

import json
from typing import Any

import numpy as np
import openai
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from replica.engine.logprobs import logprobs_of
from tests.replica.replica_process import ReplicaProcess, events

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOLERANCE = 1e-4  # sums of 49,152 float32 in another order


def stream(replica: ReplicaProcess, path: str, body: dict[str, Any]) -> list[Any]:
    """The choices of all chunks."""
    connection = replica.connect()
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}))
        *chunks, _done = events(connection.getresponse())
    finally:
        connection.close()
    return [choice for chunk in chunks for choice in chunk["choices"]]


@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=50), st.integers(0, 20))
def test_what_is_told_is_the_log_of_the_softmax(values: list[float], num_top: int) -> None:
    logits = np.array(values, np.float32)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    token_id = int(logits.argmin())
    told = logprobs_of(logits, token_id, num_top)
    assert told.logprob == pytest.approx(float(expected[token_id]), abs=1e-5)
    num_told = min(num_top, len(values))
    assert told.top_token_ids == np.argsort(-logits, kind="stable")[:num_told].tolist()
    top = expected[torch.tensor(told.top_token_ids, dtype=torch.int64)]
    assert told.top_logprobs == pytest.approx(top.tolist(), abs=1e-5)


def test_they_are_those_of_transformers(tiny_replica: ReplicaProcess) -> None:
    body = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True, "logprobs": 5}
    body |= {"temperature": 1.7, "seed": 4, "top_k": 9, "return_token_ids": True}
    (choice,) = tiny_replica.post(TEXT, body).json["choices"]
    prompt, completion = choice["prompt_token_ids"], choice["token_ids"]
    model = LlamaForCausalLM.from_pretrained(tiny_replica.log_path.parent / "tiny").eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)
    own = expected.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
    told = choice["logprobs"]
    assert told["token_logprobs"] == pytest.approx(own, abs=TOLERANCE)
    for position, top in enumerate(told["top_logprobs"]):
        likeliest = expected[position].topk(5).values.tolist()
        assert sorted(top.values(), reverse=True)[:5] == pytest.approx(likeliest, abs=TOLERANCE)
        assert len(top) == 5 + (own[position] < min(likeliest) - TOLERANCE)


def test_the_sdk_reads_those_of_a_chat(replica: ReplicaProcess) -> None:
    asked: dict[str, Any] = {
        "model": "SmolLM2-135M-Instruct",
        "messages": QUESTION,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    with openai.OpenAI(base_url=f"{replica.url}/v1", api_key="x", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    (choice,) = whole.choices
    content = choice.logprobs.content
    assert len(content) == whole.usage.completion_tokens
    text = b"".join(bytes(entry.bytes) for entry in content).decode()
    assert text == choice.message.content == "The capital of France is Paris."
    assert content[-1].token == "<|im_end|>"
    for entry in content:  # greedy: each is the likeliest
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].token == entry.token
        assert 0 >= entry.logprob == entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob
    streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    assert [entry for logprobs in streamed for entry in logprobs.content] == content


def test_nobody_who_did_not_ask_is_told(replica: ReplicaProcess) -> None:
    body = {"messages": QUESTION, "max_tokens": 2}
    for asked in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        assert replica.post(CHAT, body | asked).json["choices"][0]["logprobs"] is None
        assert all(c["logprobs"] is None for c in stream(replica, CHAT, body | asked))


@pytest.mark.parametrize("stop", [[], ["\n", "e"]], ids=["to the end", "stopped"])
def test_random_bytes_streamed_have_the_entries_of_the_whole(
    tiny_replica: ReplicaProcess, stop: list[str]
) -> None:
    """Tokens without text of their own, broken characters, text held back, two choices."""
    for seed in range(8):
        body = {"prompt": "ab", "temperature": 2.0, "seed": seed, "n": 2, "ignore_eos": True}
        body |= {"max_tokens": 30, "logprobs": 1, "return_token_ids": True, "stop": stop}
        whole = tiny_replica.post(TEXT, body).json
        pieces = stream(tiny_replica, TEXT, body)
        num_told = 0
        for choice in whole["choices"]:
            told = choice["logprobs"]
            num_told += len(told["tokens"])
            assert {len(column) for column in told.values()} == {len(choice["token_ids"])}
            mine = [p["logprobs"] for p in pieces if p["index"] == choice["index"]]
            columns = {k: [x for p in mine if p is not None for x in p[k]] for k in told}
            assert columns == told
            for offset, token in zip(told["text_offset"], told["tokens"], strict=True):
                if not stop and token.isascii() and not token.startswith(("bytes:", "<")):
                    assert token in choice["text"][offset:]
        assert num_told == whole["usage"]["completion_tokens"]


def test_logprobs_0_tells_of_the_tokens_alone(tiny_replica: ReplicaProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 4, "logprobs": 0, "ignore_eos": True}
    told = tiny_replica.post(TEXT, body).json["choices"][0]["logprobs"]
    assert told["top_logprobs"] is None
    assert len(told["tokens"]) == len(told["token_logprobs"]) == 4


def test_a_banned_end_is_told_as_likely_as_it_is(replica: ReplicaProcess) -> None:
    """``min_tokens`` bans it from being drawn, not from being thought of."""
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 9, "min_tokens": 9}
    body |= {"logprobs": True, "top_logprobs": 1}
    content = replica.post(CHAT, body).json["choices"][0]["logprobs"]["content"]
    assert content[7]["top_logprobs"][0]["token"] == "<|im_end|>"
    assert content[7]["token"] != "<|im_end|>"
    assert content[7]["logprob"] < content[7]["top_logprobs"][0]["logprob"]


def test_whoever_resumes_tells_the_rest(tiny_replica: ReplicaProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 20, "ignore_eos": True, "seed": 3, "logprobs": 2}
    whole = tiny_replica.post(TEXT, body | {"return_token_ids": True}).json["choices"][0]
    resumed = body | {"resume_tokens": whole["token_ids"][:8]}
    rest = tiny_replica.post(TEXT, resumed).json["choices"][0]["logprobs"]
    told = whole["logprobs"]
    assert rest["tokens"] == told["tokens"][8:]
    assert rest["text_offset"] == told["text_offset"][8:]
    assert rest["token_logprobs"] == pytest.approx(told["token_logprobs"][8:], abs=TOLERANCE)
