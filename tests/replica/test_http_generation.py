"""Answers of a real replica process."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import openai
import pytest
from tokenizers import Tokenizer as FastTokenizer

from contracts.tokenizer import TOKENIZER_PATH, TokenizerFile
from tests.replica.replica_process import ReplicaProcess, events

MODEL = "SmolLM2-135M-Instruct"
# None is a part of another.
CANARIES = [
    "Adam", "Albert", "Anna", "Barbara", "Boris", "Bruno", "Carlos", "Cecilia", "Clara", "David",
    "Diana", "Edward", "Emma", "Eric", "Felix", "Frank", "Gary", "George", "Grace", "Hannah",
    "Henry", "Hugo", "Irene", "Isaac", "Jacob", "James", "Julia", "Kevin", "Laura", "Leo",
    "Linda", "Lucas", "Maria", "Martin", "Nancy", "Nathan", "Olivia", "Oscar", "Patrick", "Paul",
    "Peter", "Rachel", "Robert", "Samuel", "Sophia", "Thomas", "Ursula", "Victor", "Walter",
    "William",
]  # fmt: skip
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(replica: ReplicaProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{replica.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def complete(replica: ReplicaProcess, **body: object) -> Any:
    answer = replica.post("/v1/completions", {"max_tokens": 12, "temperature": 0} | body)
    assert answer.status == 200, answer.body
    return answer.json


def stream(replica: ReplicaProcess, path: str, **body: object) -> list[Any]:
    connection = replica.connect()
    try:
        connection.request("POST", path, json.dumps({"stream": True} | body))
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response)
    finally:
        connection.close()


def test_chat_answers_and_counts(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.completion_tokens == 8


def test_streamed_text_equals_the_whole_one(client: openai.OpenAI) -> None:
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Write one line with emoji and 日本語."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_stream_has_role_then_text_then_finish_then_usage_then_done(
    replica: ReplicaProcess,
) -> None:
    *chunks, usage, done = stream(
        replica,
        "/v1/chat/completions",
        messages=QUESTION,
        max_tokens=3,
        temperature=0,
        stream_options={"include_usage": True},
    )
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    # Tokens that are generated while the connection is busy share a chunk.
    opening, *texts, finish = [c["choices"][0] for c in chunks]
    assert opening["delta"] == {"role": "assistant", "content": ""}
    assert "".join(text["delta"]["content"] for text in texts) == "The capital of"
    assert finish["delta"] == {}
    assert all(choice["finish_reason"] is None for choice in (opening, *texts))
    assert finish["finish_reason"] == "length"
    assert all(c["usage"] is None for c in chunks)


def test_usage_is_not_streamed_unless_asked_for(replica: ReplicaProcess) -> None:
    *chunks, done = stream(replica, "/v1/completions", prompt="Hello", max_tokens=2)
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)


def test_completion_of_text_and_of_its_token_ids_are_equal(replica: ReplicaProcess) -> None:
    tokens = replica.post("/tokenize", {"prompt": "The capital of France is"}).json
    by_text = complete(replica, prompt="The capital of France is")
    by_ids = complete(replica, prompt=[tokens["tokens"]])
    assert (
        by_ids["choices"][0]["text"]
        == by_text["choices"][0]["text"]
        == (" Paris.\n\nThe answer is: 201")
    )
    assert by_ids["usage"]["prompt_tokens"] == tokens["count"] == 5


def test_detokenize_inverts_tokenize(replica: ReplicaProcess) -> None:
    text = "<|im_start|>user\n  2018 x   42 — 日本語 🦜<|im_end|>"
    tokens = replica.post("/tokenize", {"prompt": text}).json["tokens"]
    assert replica.post("/detokenize", {"tokens": tokens}).json == {"prompt": text}


def test_the_tokenizer_file_counts_what_the_replica_counts(replica: ReplicaProcess) -> None:
    file = msgspec.json.decode(replica.get(TOKENIZER_PATH).body, type=TokenizerFile)
    text = "  2018 x   42 — 日本語 🦜"
    ids = FastTokenizer.from_str(file.tokenizer_json).encode(text, add_special_tokens=False).ids
    assert replica.post("/tokenize", {"prompt": text}).json["tokens"] == ids


def test_tokenize_of_messages_counts_what_chat_counts(replica: ReplicaProcess) -> None:
    assert replica.post("/tokenize", {"messages": QUESTION}).json["count"] == 37


def test_stop_string_across_tokens_ends_both_kinds_of_answer(replica: ReplicaProcess) -> None:
    whole = complete(replica, prompt="One, two, three,", stop=["even, ei", "nine"])
    assert whole["choices"][0]["text"].endswith(" s")
    assert whole["choices"][0]["finish_reason"] == "stop"
    *chunks, finish, _ = stream(
        replica,
        "/v1/completions",
        prompt="One, two, three,",
        stop=["even, ei", "nine"],
        max_tokens=12,
        temperature=0,
    )
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    assert finish["choices"][0]["finish_reason"] == "stop"


def test_same_seed_gives_the_same_text_alone_and_in_company(replica: ReplicaProcess) -> None:
    request = {"prompt": "Once upon a time", "temperature": 1.0, "top_p": 0.9, "max_tokens": 16}
    alone = complete(replica, **request, seed=7)["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        seeds = [7, 1, 2, 7, 3, 4]
        texts = list(
            pool.map(lambda s: complete(replica, **request, seed=s)["choices"][0]["text"], seeds)
        )
    assert texts[0] == texts[3] == alone
    assert len(set(texts)) > 3


def test_without_a_seed_answers_differ(replica: ReplicaProcess) -> None:
    request = {"prompt": "Once upon a time", "temperature": 1.5, "max_tokens": 16}
    assert len({complete(replica, **request)["choices"][0]["text"] for _ in range(3)}) > 1


def test_second_of_two_equal_prompts_is_cached_unless_salted(replica: ReplicaProcess) -> None:
    prompt = "A prefix of its own. " * 12
    counts = [
        complete(replica, prompt=prompt, max_tokens=1, cache_salt=salt)["usage"]
        for salt in ("a", "a", "b")
    ]
    cached = [c["prompt_tokens_details"]["cached_tokens"] for c in counts]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0
    assert len({c["prompt_tokens"] for c in counts}) == 1


def test_max_completion_tokens_wins(replica: ReplicaProcess) -> None:
    body = {"messages": QUESTION, "max_tokens": 5, "max_completion_tokens": 2}
    answer = replica.post("/v1/chat/completions", body).json
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"


def test_longest_prompt_leaves_room_for_one_token(replica: ReplicaProcess) -> None:
    usage = complete(replica, prompt=[40] * 1023, max_tokens=None)["usage"]
    assert usage["completion_tokens"] == 1


def test_canaries_never_appear_in_other_answers(replica: ReplicaProcess) -> None:
    """Fifty at a time over eight places: blocks and rows change hands all the while."""

    def ask(name: str) -> str:
        prompt = f"My name is {name}. My name is {name}. My name is {name}. My name is"
        text: str = complete(replica, prompt=prompt, max_tokens=4)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(CANARIES)) as pool:
        texts = list(pool.map(ask, CANARIES))
    for name, text in zip(CANARIES, texts, strict=True):
        assert name in text
        assert not any(other in text for other in CANARIES if other != name)


def test_models_lists_the_served_one(client: openai.OpenAI, replica: ReplicaProcess) -> None:
    (card,) = client.models.list().data
    assert card.id == MODEL
    assert replica.get("/v1/models").json["data"][0]["max_model_len"] == 1024


def test_request_id_comes_back(replica: ReplicaProcess) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    answer = replica.post("/v1/completions", body, {"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


def test_metrics_are_what_a_scraper_reads(replica: ReplicaProcess) -> None:
    complete(replica, prompt="warm", max_tokens=2)
    answer = replica.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    typed = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert typed["vllm:num_requests_running"] == "gauge"
    assert typed["vllm:prompt_tokens_total"] == "counter"
    assert typed["vllm:time_to_first_token_seconds"] == "histogram"
    buckets = [line for line in lines if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    assert 'le="+Inf"' in buckets[-1]
    assert any('block_size="16"' in line for line in lines)
