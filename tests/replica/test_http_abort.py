"""Requests that end early: stopped at once, blocks back, counted to the token."""

import json
import threading
from typing import Any

import pytest

from contracts.replica_api import abort_path
from tests.replica.replica_process import Answer, ReplicaProcess, events, next_event

RUNNING = "vllm:num_requests_running"
PROMPT = "vllm:prompt_tokens_total"
GENERATED = "vllm:generation_tokens_total"
LONG = {"prompt": "Count on:", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def counters(replica: ReplicaProcess) -> tuple[float, float]:
    return replica.metric(PROMPT), replica.metric(GENERATED)


def abort(replica: ReplicaProcess, request_id: str) -> Any:
    answer = replica.request("POST", abort_path(request_id))
    assert answer.status == 200, answer.body
    return answer.json


def test_abort_counts_exactly_what_the_counters_grew_by(replica: ReplicaProcess) -> None:
    prompt, generated = counters(replica)
    connection = replica.connect()
    try:
        body = LONG | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"x-request-id": "a/1"})
        response = connection.getresponse()
        for _ in range(4):
            next_event(response)
        usage = abort(replica, "a/1")
        *_, finish, last, done = events(response)
    finally:
        connection.close()
    assert (finish["choices"][0]["finish_reason"], done) == ("abort", "[DONE]")
    assert last["usage"]["completion_tokens"] == usage["completion_tokens"] < 900
    assert last["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    replica.wait_metric(RUNNING, 0)
    assert counters(replica) == (
        prompt + usage["prompt_tokens"],
        generated + usage["completion_tokens"],
    )
    replica.wait_metric("vllm:kv_cache_usage_perc", 0)


def test_abort_after_the_end_answers_the_final_count(replica: ReplicaProcess) -> None:
    answer = replica.post(
        "/v1/completions", {"prompt": "Hello", "max_tokens": 3}, {"x-request-id": "done-1"}
    )
    usage = abort(replica, "done-1")
    assert usage["type"] == "replica.aborted.v1"
    assert usage["prompt_tokens"] == answer.json["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == answer.json["usage"]["completion_tokens"]


def test_abort_sums_requests_that_share_an_id(replica: ReplicaProcess) -> None:
    body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
    for _ in range(2):
        replica.post("/v1/completions", body, {"x-request-id": "twice"})
    assert abort(replica, "twice")["completion_tokens"] == 6


def test_two_at_once_of_one_id_are_two_requests_and_end_together(replica: ReplicaProcess) -> None:
    before = counters(replica)
    answers: list[Answer] = []

    def ask(prompt: str) -> None:
        body = LONG | {"prompt": prompt}
        answers.append(replica.post("/v1/completions", body, {"x-request-id": "duplicate"}))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in ("One,", "A, b, c,")]
    for thread in threads:
        thread.start()
    replica.wait_metric(RUNNING, 2)
    usage = abort(replica, "duplicate")
    for thread in threads:
        thread.join()
    assert [a.json["choices"][0]["finish_reason"] for a in answers] == ["abort", "abort"]
    used = sum(answer.json["usage"]["completion_tokens"] for answer in answers)
    assert used == usage["completion_tokens"]
    assert counters(replica) == (
        before[0] + usage["prompt_tokens"],
        before[1] + usage["completion_tokens"],
    )


def test_abort_of_an_unknown_request_is_not_found(replica: ReplicaProcess) -> None:
    answer = replica.request("POST", abort_path("never/heard of"))
    assert answer.status == 404
    assert answer.json["error"]["code"] == "request_not_found"


def test_abort_that_overtakes_its_request_stops_it_on_arrival(replica: ReplicaProcess) -> None:
    before = counters(replica)
    headers = {"x-request-id": "overtaken"}
    assert replica.request("POST", abort_path("overtaken")).status == 404
    refused = replica.post("/v1/completions", LONG, headers)
    assert refused.status == 499
    assert refused.json["error"]["code"] == "request_aborted"
    usage = abort(replica, "overtaken")
    assert usage["prompt_tokens"] == usage["completion_tokens"] == 0
    assert counters(replica) == before
    again = replica.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1}, headers)
    assert again.status == 200


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_disconnect_stops_the_generation(replica: ReplicaProcess, is_stream: bool) -> None:
    prompt, generated = counters(replica)
    request_id = f"gone-{is_stream}"
    connection = replica.connect()
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps(LONG | {"stream": is_stream}),
        {"x-request-id": request_id},
    )
    replica.wait_metric(RUNNING, 1)
    connection.close()
    replica.wait_metric(RUNNING, 0)
    usage = abort(replica, request_id)
    assert usage["completion_tokens"] < 900
    assert counters(replica) == (
        prompt + usage["prompt_tokens"],
        generated + usage["completion_tokens"],
    )


def test_whole_answer_of_an_aborted_request_says_so(replica: ReplicaProcess) -> None:
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(replica.post("/v1/completions", LONG, {"x-request-id": "whole-1"}))

    thread = threading.Thread(target=ask)
    thread.start()
    replica.wait_metric(RUNNING, 1)
    usage = abort(replica, "whole-1")
    thread.join()
    answer = answers[0].json
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["usage"]["completion_tokens"] == usage["completion_tokens"]


def test_many_disconnects_leave_nothing_behind(replica: ReplicaProcess) -> None:
    connections = [replica.connect() for _ in range(12)]  # more than run at once
    for connection in connections:
        connection.request("POST", "/v1/completions", json.dumps(LONG | {"stream": True}))
    replica.wait_metric(RUNNING, 8)
    for connection in connections:
        connection.close()
    replica.wait_metric(RUNNING, 0)
    replica.wait_metric("vllm:num_requests_waiting", 0)
    replica.wait_metric("vllm:kv_cache_usage_perc", 0)
