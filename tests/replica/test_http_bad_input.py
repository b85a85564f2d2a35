"""Whatever comes in: a clear error in OpenAI's shape, and a replica that goes on."""

import json
import math
from typing import Any

import pytest

from contracts.replica_api import CODE_NOT_SUPPORTED
from tests.replica.replica_process import ReplicaProcess

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1} | fields


def text(**fields: object) -> dict[str, object]:
    return {"prompt": "hi", "max_tokens": 1} | fields


BAD: list[tuple[str, str, object, str | None]] = [
    ("empty body", CHAT, b"", None),
    ("not json", CHAT, b"{", None),
    ("array", CHAT, [], None),
    ("deep nesting", CHAT, b"[" * 100_000, None),
    ("broken utf-8", TEXT, b'{"prompt": "\xff\xfe"}', None),
    ("lone surrogate", TEXT, b'{"prompt": "\\ud800"}', None),
    ("no messages", CHAT, {}, "messages"),
    ("empty messages", CHAT, chat(messages=[]), "messages"),
    ("messages of strings", CHAT, chat(messages=["hi"]), "messages[0]"),
    ("unknown role", CHAT, chat(messages=[{"role": "boss", "content": ""}]), "messages[0].role"),
    ("no content", CHAT, chat(messages=[{"role": "user"}]), "messages[0].content"),
    (
        "image part",
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "messages[0].content[0].type",
    ),
    ("no prompt", TEXT, {}, "prompt"),
    ("empty prompt", TEXT, text(prompt=""), "prompt"),
    ("empty ids", TEXT, text(prompt=[]), "prompt"),
    ("negative id", TEXT, text(prompt=[1, -1]), "prompt"),
    ("id beyond the vocabulary", TEXT, text(prompt=[49152]), "prompt"),
    ("huge id", TEXT, text(prompt=[1 << 70]), "prompt"),
    ("float id", TEXT, text(prompt=[1.5]), "prompt[0]"),
    ("several prompts", TEXT, text(prompt=["a", "b"]), "prompt"),
    ("mixed prompts", TEXT, text(prompt=[1, "b"]), "prompt"),
    ("prompt fills the context", TEXT, text(prompt=[40] * 1024), "prompt"),
    ("prompt beyond the context", TEXT, text(prompt=[40] * 5000), "prompt"),
    (
        "prompt and completion beyond it",
        TEXT,
        text(prompt=[40] * 1000, max_tokens=25),
        "max_tokens",
    ),
    ("no tokens", TEXT, text(max_tokens=0), "max_tokens"),
    ("negative tokens", CHAT, chat(max_tokens=-1), "max_tokens"),
    ("huge tokens", CHAT, chat(max_tokens=1 << 80), "max_tokens"),
    ("zero completion tokens", CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    ("text tokens", CHAT, chat(max_tokens="ten"), "max_tokens"),
    ("negative temperature", TEXT, text(temperature=-0.1), "temperature"),
    ("hot temperature", TEXT, text(temperature=2.1), "temperature"),
    ("NaN temperature", TEXT, text(temperature=math.nan), None),
    ("infinite temperature", TEXT, text(temperature=math.inf), None),
    ("overflowing temperature", TEXT, b'{"prompt":"a","temperature":1e999}', "temperature"),
    ("boolean temperature", TEXT, text(temperature=True), "temperature"),
    ("top_p above 1", TEXT, text(top_p=1.01), "top_p"),
    ("top_p below 0", TEXT, text(top_p=-1), "top_p"),
    ("top_k below -1", TEXT, text(top_k=-2), "top_k"),
    ("min_p above 1", TEXT, text(min_p=2), "min_p"),
    ("min_tokens above max", TEXT, text(min_tokens=2), "min_tokens"),
    ("seed of 64 bits", TEXT, text(seed=1 << 63), "seed"),
    ("priority of text", TEXT, text(priority="high"), "priority"),
    ("priority out of range", TEXT, text(priority=1_001), "priority"),
    ("no time", TEXT, text(max_time_s=0), "max_time_s"),
    ("endless time", TEXT, b'{"prompt":"a","max_time_s":1e999}', "max_time_s"),
    ("nothing to resume", TEXT, text(resume_tokens=[5]), "resume_tokens"),
    ("resumed id out of range", TEXT, text(resume_tokens=[-1], max_tokens=9), "resume_tokens"),
    ("resumed after the end", TEXT, text(resume_tokens=[2], max_tokens=9), "resume_tokens"),
    ("an end within the resumed", TEXT, text(resume_tokens=[2, 5], max_tokens=9), "resume_tokens"),
    (
        "resumed after a stop",
        TEXT,
        text(resume_tokens=[260, 5], max_tokens=9, stop="the"),
        "resume_tokens",
    ),
    ("empty stop", TEXT, text(stop=""), "stop"),
    ("stop of numbers", TEXT, text(stop=[1]), "stop[0]"),
    ("too many stops", TEXT, text(stop=["a"] * 17), "stop"),
    ("n above what runs at once", CHAT, chat(n=9), "n"),
    ("n of 0", TEXT, text(n=0), "n"),
    ("huge n", TEXT, text(n=1 << 70), "n"),
    ("n of 1.5", TEXT, text(n=1.5), "n"),
    ("n resumed", TEXT, text(n=2, max_tokens=9, resume_tokens=[5]), "n"),
    ("n of true", CHAT, chat(n=True), "n"),
    ("best_of", TEXT, text(best_of=3), "best_of"),
    ("echo", TEXT, text(echo=True), "echo"),
    ("suffix", TEXT, text(suffix="x"), "suffix"),
    ("top logprobs without logprobs", CHAT, chat(top_logprobs=2), "top_logprobs"),
    ("too many top logprobs", CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    ("top logprobs below 0", CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    ("logprobs of a number", CHAT, chat(logprobs=2), "logprobs"),
    ("too many logprobs", TEXT, text(logprobs=21), "logprobs"),
    ("logprobs below 0", TEXT, text(logprobs=-1), "logprobs"),
    ("logprobs of true", TEXT, text(logprobs=True), "logprobs"),
    ("top logprobs of a text", TEXT, text(logprobs=1, top_logprobs=2), "top_logprobs"),
    ("top logprobs of true", TEXT, text(top_logprobs=True), "top_logprobs"),
    ("tools", CHAT, chat(tools=[{"type": "function"}]), "tools"),
    ("response format", CHAT, chat(response_format={"type": "json_object"}), "response_format"),
    ("logit bias of a word", CHAT, chat(logit_bias={"the": 5}), "logit_bias"),
    ("logit bias beyond the vocabulary", TEXT, text(logit_bias={"49152": 5}), "logit_bias"),
    ("logit bias of a huge id", TEXT, text(logit_bias={"9" * 5000: 5}), "logit_bias"),
    ("logit bias of a negative id", TEXT, text(logit_bias={"-1": 5}), "logit_bias"),
    ("logit bias above 100", TEXT, text(logit_bias={"1": 100.5}), "logit_bias"),
    ("endless logit bias", TEXT, b'{"prompt":"a","logit_bias":{"1":1e999}}', "logit_bias[...]"),
    ("logit bias of text", TEXT, text(logit_bias={"1": "much"}), "logit_bias[...]"),
    ("too many biases", TEXT, text(logit_bias={str(i): 0 for i in range(1025)}), "logit_bias"),
    ("frequency penalty above 2", CHAT, chat(frequency_penalty=2.5), "frequency_penalty"),
    ("presence penalty below -2", CHAT, chat(presence_penalty=-2.1), "presence_penalty"),
    ("presence penalty of text", CHAT, chat(presence_penalty="much"), "presence_penalty"),
    ("endless penalty", TEXT, b'{"prompt":"a","presence_penalty":1e999}', "presence_penalty"),
    ("no repetition penalty at all", TEXT, text(repetition_penalty=0), "repetition_penalty"),
    ("huge repetition penalty", TEXT, text(repetition_penalty=101), "repetition_penalty"),
    ("stream options alone", CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
    ("stream of text", CHAT, chat(stream="yes"), "stream"),
    ("long salt", CHAT, chat(cache_salt="s" * 513), "cache_salt"),
    ("tokenize nothing", "/tokenize", {}, "prompt"),
    ("detokenize nonsense", "/detokenize", {"tokens": [-1]}, "tokens"),
]


def error_of(body: bytes) -> Any:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


@pytest.mark.parametrize(("path", "body", "param"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_refused_by_name(
    replica: ReplicaProcess, path: str, body: object, param: str | None
) -> None:
    answer = replica.post(path, body)
    assert answer.status == 400, answer.body
    error = error_of(answer.body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [{"type": "function"}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ],
    ids=["tools", "tool result", "image"],
)
def test_what_another_server_may_serve_has_a_code_of_its_own(
    replica: ReplicaProcess, changes: dict[str, object]
) -> None:
    answer = replica.post(CHAT, chat(**changes))
    assert (answer.status, error_of(answer.body)["code"]) == (400, CODE_NOT_SUPPORTED)


def test_streamed_bad_input_is_an_ordinary_error(replica: ReplicaProcess) -> None:
    answer = replica.post(CHAT, chat(stream=True, temperature=9))
    assert answer.status == 400
    assert error_of(answer.body)["param"] == "temperature"


def test_harmless_fields_are_accepted(replica: ReplicaProcess) -> None:
    body = chat(
        user="u", metadata={"a": "b"}, store=False, service_tier="auto", n=1, tools=[],
        presence_penalty=None, response_format={"type": "text"}, some_future_field=[1],
    )  # fmt: skip
    assert replica.post(CHAT, body).status == 200
    answer = replica.post(TEXT, text(logprobs=False, top_logprobs=0))
    assert (answer.status, answer.json["choices"][0]["logprobs"]) == (200, None)


def test_unknown_model_is_not_found(replica: ReplicaProcess) -> None:
    answer = replica.post(CHAT, chat(model="gpt-9"))
    assert answer.status == 404
    assert error_of(answer.body)["code"] == "model_not_found"


def test_body_of_ten_megabytes_is_too_large(replica: ReplicaProcess) -> None:
    answer = replica.post(TEXT, b'{"prompt":"' + b"a" * 10_000_000 + b'"}')
    assert answer.status == 413
    assert error_of(answer.body)["code"] == "body_too_large"


@pytest.mark.parametrize("num_words", [3_000, 800_000], ids=["tokenized", "never tokenized"])
def test_prompt_that_cannot_fit_is_refused_alike(replica: ReplicaProcess, num_words: int) -> None:
    for path, body in (
        (TEXT, text(prompt="word " * num_words)),
        (CHAT, chat(messages=[{"role": "user", "content": "word " * num_words}])),
    ):
        answer = replica.post(path, body)
        assert answer.status == 400
        assert error_of(answer.body)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", "/ready", 405)],
)
def test_wrong_route_or_method(
    replica: ReplicaProcess, method: str, path: str, status: int
) -> None:
    answer = replica.request(method, path)
    assert answer.status == status
    error_of(answer.body)


def test_unprintable_request_id_is_refused(replica: ReplicaProcess) -> None:
    answer = replica.post(CHAT, chat(), {"x-request-id": "a b"})
    assert answer.status == 400


def test_neither_prompts_nor_answers_are_logged(replica: ReplicaProcess) -> None:
    secret = "xyzzy-plugh-4711"
    replica.post(TEXT, text(prompt=secret))
    replica.post(TEXT, text(prompt=secret, temperature=9))
    replica.post(CHAT, chat(messages=[{"role": secret, "content": secret}]))
    assert secret not in replica.log
    assert secret not in replica.get("/metrics").body.decode()
