"""Ten thousand bodies that nobody would send: no 500, no stuck block, and the replica goes on."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contracts.replica_api import abort_path
from replica.api.schemas import ChatCompletionBody, CompletionBody
from tests.replica.replica_process import ReplicaProcess, events

NUM_BODIES = 10_000
NUM_CLIENTS = 4
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
ACCEPTABLE = {200, 400, 404, 413}

pytestmark = pytest.mark.timeout(300)


class Bodies:
    """Good ones, changed a little; ones of odd types; damaged bytes."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def next(self) -> tuple[str, bytes]:
        rng = self._rng
        path = rng.choice(PATHS)
        body = self._good(path)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            body[rng.choice(self._fields(path))] = self._odd(3)
        payload = json.dumps(body).encode()
        match rng.randrange(12):
            case 0:
                payload = payload[: rng.randrange(len(payload))]
            case 1:
                position = rng.randrange(len(payload))
                payload = payload[:position] + rng.randbytes(3) + payload[position + 1 :]
            case 2:
                payload = json.dumps(self._odd(6)).encode()
            case 3:
                payload = rng.randbytes(rng.randrange(30))
        return path, payload

    def _good(self, path: str) -> dict[str, Any]:
        rng = self._rng
        text = "".join(rng.choices("ab é🦜\n\x00", k=rng.randrange(1, 12)))
        sampling = {"max_tokens": rng.randrange(1, 6), "stream": rng.random() < 0.3}
        match path:
            case "/v1/chat/completions":
                return {"messages": [{"role": "user", "content": text}], **sampling}
            case "/v1/completions":
                return {"prompt": rng.choice([text, [1, 2, 3], [text], [[5, 6]]]), **sampling}
            case "/tokenize":
                return {"prompt": text}
            case _:
                return {"tokens": [rng.randrange(259) for _ in range(5)]}

    def _fields(self, path: str) -> tuple[str, ...]:
        if path == "/v1/chat/completions":
            return ChatCompletionBody.__struct_fields__
        return (*CompletionBody.__struct_fields__, "tokens", "add_special_tokens")

    def _odd(self, depth: int) -> Any:
        rng = self._rng
        simple = (
            None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e999, float("nan"), 1 << 63, -(1 << 70), "",
            "x", "x" * 2000, "\ud800", "\x00", "a\u0301" * 40, 1e-300, [], {}, "user", "text", 257,
        )  # fmt: skip
        if depth and rng.random() < 0.35:
            if rng.random() < 0.5:
                return [self._odd(depth - 1) for _ in range(rng.randrange(4))]
            names = ("role", "content", "type", "text", "include_usage", "x")
            return {rng.choice(names): self._odd(depth - 1) for _ in range(rng.randrange(4))}
        return rng.choice(simple)


def ask(replica: ReplicaProcess, seed: int) -> Counter[int]:
    """Over one connection, as long as it lasts; some are aborted or left half-way."""
    bodies = Bodies(seed)
    rng = random.Random(-seed)
    statuses: Counter[int] = Counter()
    connection = replica.connect()
    for index in range(NUM_BODIES // NUM_CLIENTS):
        path, payload = bodies.next()
        request_id = f"{seed}-{index}"
        connection.request("POST", path, payload, {"x-request-id": request_id})
        fate = rng.random()
        if fate < 0.02:
            connection.close()  # without reading the answer
            continue
        response = connection.getresponse()
        if fate < 0.04:
            replica.request("POST", abort_path(request_id))
        body = response.read()
        assert response.status in ACCEPTABLE, (response.status, path, payload, body)
        if response.status != 200:
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        statuses[response.status] += 1
    connection.close()
    return statuses


def test_ten_thousand_odd_bodies(tiny_replica: ReplicaProcess) -> None:
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        statuses = sum(pool.map(lambda seed: ask(tiny_replica, seed), range(4)), Counter())
    # The net has meshes: neither is everything refused nor everything taken.
    assert statuses[200] > 1_000
    assert statuses[400] > 1_000
    tiny_replica.wait_metric("vllm:num_requests_running", 0)
    tiny_replica.wait_metric("vllm:num_requests_waiting", 0)
    tiny_replica.wait_metric("vllm:kv_cache_usage_perc", 0)
    assert "Traceback" not in tiny_replica.log
    answer = tiny_replica.post("/v1/completions", {"prompt": "ab", "max_tokens": 2})
    assert answer.status == 200


def streamed(replica: ReplicaProcess, body: dict[str, object]) -> tuple[list[str], Any]:
    """The text of each choice, and the usage."""
    connection = replica.connect()
    try:
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(asked))
        *chunks, last, _done = events(connection.getresponse())
    finally:
        connection.close()
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts, last["usage"]


def test_streams_of_random_bytes_are_the_whole_answers(tiny_replica: ReplicaProcess) -> None:
    """Broken characters, stop strings that begin inside them, answers of one token."""
    rng = random.Random(3)
    num_broken = num_stopped = 0
    for seed in range(60):
        body = {"prompt": "ab", "temperature": 2.0, "seed": seed, "n": 2, "ignore_eos": True}
        body |= {"max_tokens": rng.choice((1, 2, 5, 40)), "return_token_ids": True}
        first = tiny_replica.post("/v1/completions", body).json["choices"][0]["text"]
        start = rng.randrange(len(first) + 1)
        body["stop"] = [first[start : start + rng.randrange(1, 4)] or "never", "\ufffd\ufffdx"]
        whole = tiny_replica.post("/v1/completions", body).json
        texts, usage = streamed(tiny_replica, body)
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
        num_tokens = sum(len(choice["token_ids"]) for choice in whole["choices"])
        assert num_tokens == usage["completion_tokens"]
        num_broken += "\ufffd" in texts[0]
        num_stopped += whole["choices"][0]["finish_reason"] == "stop"
    assert num_broken > 10
    assert num_stopped > 10
