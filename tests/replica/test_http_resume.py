"""A stream that breaks off at any token goes on elsewhere as if nothing had happened."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.replica.replica_process import ReplicaProcess, events

NUM_TOKENS = 64
MOST_RUNS = 2_000
PROMPT = "ab"
CHAT = [{"role": "user", "content": PROMPT}]
SAMPLING = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 11, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}
PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class Streamed:
    chunks: Sequence[Any]
    usage: Any

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in _choice(chunk).get("token_ids", ())]

    @property
    def text(self) -> str:
        return "".join(map(_text, self.chunks))

    @property
    def finish_reason(self) -> str:
        return _choice(self.chunks[-1])["finish_reason"]

    def told(self) -> dict[int, str]:
        """The text that had come with so many tokens, where a chunk ended with that many."""
        told, text, num_tokens = {0: ""}, "", 0
        for chunk in self.chunks:
            text += _text(chunk)
            num_tokens += len(_choice(chunk).get("token_ids", ()))
            if _choice(chunk)["finish_reason"] is None:
                told[num_tokens] = text
        return told


def _choice(chunk: Any) -> Any:
    (choice,) = chunk["choices"]
    return choice


def _text(chunk: Any) -> str:
    choice = _choice(chunk)
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def stream(replica: ReplicaProcess, path: str, body: dict[str, Any]) -> Streamed:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    connection = replica.connect()
    try:
        connection.request("POST", path, json.dumps(asked))
        *chunks, last, done = events(connection.getresponse())
    finally:
        connection.close()
    assert done == "[DONE]"
    return Streamed(chunks, last["usage"])


def request(path: str, sampling: str, **changes: object) -> dict[str, Any]:
    prompt = {"prompt": PROMPT} if path == PATHS[0] else {"messages": CHAT}
    fixed = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return prompt | SAMPLING[sampling] | fixed | changes


def told_at_each_token(
    replica: ReplicaProcess, path: str, body: dict[str, Any], whole: Streamed
) -> dict[int, str]:
    """Tokens that come while the connection is busy share a chunk: so look again."""
    told: dict[int, str] = {}
    wanted = set(range(len(whole.token_ids)))
    for _ in range(MOST_RUNS):
        again = stream(replica, path, body)
        assert (again.text, again.token_ids) == (whole.text, whole.token_ids)
        for num_tokens, text in again.told().items():
            assert told.setdefault(num_tokens, text) == text
        if wanted <= told.keys():
            return told
    raise AssertionError(f"no stream could be cut after {sorted(wanted - told.keys())} tokens")


def check_every_cut(replica: ReplicaProcess, path: str, body: dict[str, Any]) -> Streamed:
    whole = stream(replica, path, body)
    told = told_at_each_token(replica, path, body, whole)

    def check(num_tokens: int) -> None:
        tokens = whole.token_ids[:num_tokens]
        rest = stream(replica, path, body | {"resume_tokens": tokens})
        assert (told[num_tokens] + rest.text).encode() == whole.text.encode()
        assert [*tokens, *rest.token_ids] == whole.token_ids
        assert rest.finish_reason == whole.finish_reason
        assert rest.usage["prompt_tokens"] == whole.usage["prompt_tokens"] + num_tokens
        assert rest.usage["total_tokens"] == whole.usage["total_tokens"]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, range(len(whole.token_ids))))
    return whole


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_stream_goes_on_behind_any_of_its_tokens(
    tiny_replica: ReplicaProcess, path: str, sampling: str
) -> None:
    """Each token is a byte, so many of the seams lie within characters, too."""
    whole = check_every_cut(tiny_replica, path, request(path, sampling))
    assert len(whole.token_ids) == NUM_TOKENS


@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_stop_string_across_the_seam_ends_the_answer(
    tiny_replica: ReplicaProcess, sampling: str
) -> None:
    path = PATHS[0]
    text = stream(tiny_replica, path, request(path, sampling)).text
    starts = [start for start in range(8, len(text) - 8) if text.find(text[start : start + 6]) > 7]
    stop = text[starts[-1] : starts[-1] + 6]
    whole = check_every_cut(tiny_replica, path, request(path, sampling, stop=[stop]))
    assert whole.text == text[: text.find(stop)]
    assert whole.finish_reason == "stop"


def test_a_resumed_stream_is_counted_as_what_it_computed(tiny_replica: ReplicaProcess) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    path, body = PATHS[0], request(PATHS[0], "greedy")
    whole = stream(tiny_replica, path, body)
    before = [tiny_replica.metric(name) for name in names]
    rest = stream(tiny_replica, path, body | {"resume_tokens": whole.token_ids[:40]})
    after = [tiny_replica.metric(name) for name in names]
    counted = [int(b - a) for a, b in zip(before, after, strict=True)]
    assert counted == [rest.usage["prompt_tokens"], rest.usage["completion_tokens"]]
    assert counted == [whole.usage["prompt_tokens"] + 40, NUM_TOKENS - 40]


@pytest.mark.parametrize("path", PATHS)
def test_token_ids_stand_where_vllm_puts_them(tiny_replica: ReplicaProcess, path: str) -> None:
    body = request(path, "greedy")
    whole = tiny_replica.post(path, body).json
    streamed = stream(tiny_replica, path, body)
    chunks = streamed.chunks
    kind = {"messages": CHAT} if "messages" in body else {"prompt": PROMPT}
    prompt = tiny_replica.post("/tokenize", kind).json["tokens"]
    holders = [whole, chunks[0]] if "messages" in body else [_choice(whole), _choice(chunks[0])]
    assert [holder["prompt_token_ids"] for holder in holders] == [prompt, prompt]
    found = streamed.usage["prompt_tokens_details"]["cached_tokens"]
    assert holders[1]["cached_prompt_tokens"] == found
    assert len(_choice(whole)["token_ids"]) == NUM_TOKENS
    later = chunks[1:]
    assert all("prompt_token_ids" not in chunk for chunk in [*later, *map(_choice, later)])
    assert all(_choice(chunk)["token_ids"] for chunk in later[:-1]), "a chunk without tokens"


@pytest.mark.parametrize("path", PATHS)
def test_token_ids_are_told_to_nobody_who_did_not_ask(
    tiny_replica: ReplicaProcess, path: str
) -> None:
    body = request(path, "greedy", return_token_ids=False)
    chunks = stream(tiny_replica, path, body).chunks
    assert "token_ids" not in tiny_replica.post(path, body).body.decode()
    assert "token_ids" not in json.dumps(chunks)
