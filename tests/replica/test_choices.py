"""Several answers to one prompt: apart in what they say, together in what they cost."""

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from contracts.replica_api import abort_path
from replica.engine.messages import FinishReason, SamplingParams, Usage, encode_frame
from replica.engine.scheduler import SchedulerLimits
from replica.engine.submission import Work, choice_seed, submission
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel
from tests.replica.replica_process import ReplicaProcess, events, next_event

PROMPT = list(range(1, 31))  # 7 full blocks of 4 and a half
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


def harness(*, is_prefix_caching: bool = True, max_num_seqs: int = 8) -> EngineHarness:
    limits = SchedulerLimits(4, max_num_seqs, 16, is_prefix_caching=is_prefix_caching)
    return EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks=256)


def submit_choices(engine: EngineHarness, num_choices: int) -> tuple[Sequence[int], int]:
    """The sequences' ids, and how many tokens were computed until all have ended."""
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    num_computed = 0

    def count(report: Any) -> None:
        nonlocal num_computed
        num_computed += report.num_batched_tokens

    engine.on_report = count
    ids = engine.enqueue_as_it_is(submission(Work(PROMPT, params, num_choices), 1, None))
    engine.run()
    return ids, num_computed


@pytest.mark.parametrize("is_prefix_caching", [True, False])
def test_the_prompt_counts_once_and_every_completion(is_prefix_caching: bool) -> None:
    engine = harness(is_prefix_caching=is_prefix_caching)
    ids, _ = submit_choices(engine, 3)
    usages = [engine.outcomes[i].usage for i in ids]
    assert usages == [
        Usage(prompt_tokens=30, completion_tokens=6),
        Usage(completion_tokens=6),
        Usage(completion_tokens=6),
    ]
    assert (engine.stats.prompt_tokens, engine.stats.generation_tokens) == (30, 18)


def test_only_the_last_block_of_the_prompt_is_computed_by_each() -> None:
    _, alone = submit_choices(harness(), 1)
    _, together = submit_choices(harness(), 5)
    num_decoded = 5  # the first token comes with the prompt
    assert alone == len(PROMPT) + num_decoded
    assert together == alone + 4 * (len(PROMPT) % 4 + num_decoded)


def test_choices_share_the_blocks_of_the_prompt() -> None:
    engine = harness()
    most = 0

    def note(report: Any) -> None:
        nonlocal most
        most = max(most, report.stats.num_used_blocks)

    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine.enqueue_as_it_is(submission(Work(PROMPT, params, 5), 1, None))
    engine.on_report = note
    engine.run()
    assert most == 7 + 5 * 2, "7 shared ones, and each its own two"


def test_more_choices_than_places_all_end() -> None:
    engine = harness(max_num_seqs=2)
    ids, _ = submit_choices(engine, 7)
    assert {engine.outcomes[i].finish_reason for i in ids} == {FinishReason.LENGTH}
    assert engine.stats.prompt_tokens == 30


def test_the_prompt_is_sent_once() -> None:
    params = SamplingParams(max_tokens=6)
    one, many = (
        encode_frame(submission(Work(list(range(1000)), params, n), 1, None)) for n in (1, 16)
    )
    assert len(many) == len(one)


def test_seeds_of_choices_are_unlike_and_the_first_is_the_request_s_own() -> None:
    seeds = [choice_seed(s, i) for s in (0, 1, -1, 1 << 62) for i in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(1 << 63) <= seed < 1 << 63 for seed in seeds)
    assert [choice_seed(s, 0) for s in (0, 1, -1)] == [0, 1, -1]
    assert choice_seed(1, 1) == choice_seed(1, 1)


# Over HTTP

STORY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.0, "seed": 1}


def texts(answer: Any) -> list[str]:
    assert [c["index"] for c in answer["choices"]] == list(range(len(answer["choices"])))
    return [c["text"] for c in answer["choices"]]


def streamed_texts(chunks: Sequence[Any], num_choices: int) -> list[str]:
    """Each choice: text, then exactly one finish reason, then nothing."""
    parts: list[list[str]] = [[] for _ in range(num_choices)]
    num_finished: Counter[int] = Counter()
    for chunk in chunks:
        for choice in chunk["choices"]:
            index = choice["index"]
            assert not num_finished[index], "a chunk after the last"
            parts[index].append(choice["text"])
            num_finished[index] += choice["finish_reason"] is not None
    assert num_finished == Counter(range(num_choices))
    return ["".join(p) for p in parts]


def stream(replica: ReplicaProcess, body: dict[str, object]) -> list[Any]:
    connection = replica.connect()
    try:
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(asked))
        return events(connection.getresponse())
    finally:
        connection.close()


def counters(replica: ReplicaProcess) -> tuple[int, int]:
    return int(replica.metric(COUNTERS[0])), int(replica.metric(COUNTERS[1]))


def test_choices_differ_and_come_again_with_the_seed(replica: ReplicaProcess) -> None:
    first = replica.post("/v1/completions", STORY | {"n": 4}).json
    assert len(set(texts(first))) == 4
    assert texts(replica.post("/v1/completions", STORY | {"n": 4}).json) == texts(first)
    alone = replica.post("/v1/completions", STORY).json
    assert texts(alone) == texts(first)[:1]


def test_streamed_choices_are_the_whole_ones_and_usage_comes_once(replica: ReplicaProcess) -> None:
    before = counters(replica)
    whole = replica.post("/v1/completions", STORY | {"n": 3, "stop": [" the"]}).json
    *chunks, last, done = stream(replica, STORY | {"n": 3, "stop": [" the"]})
    assert done == "[DONE]"
    assert streamed_texts(chunks, 3) == texts(whole)
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    one = replica.post("/v1/completions", STORY | {"max_tokens": 1}).json["usage"]
    for usage in (last["usage"], whole["usage"]):
        assert usage["prompt_tokens"] == one["prompt_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    after = counters(replica)
    assert after[0] - before[0] == 3 * one["prompt_tokens"]
    assert after[1] - before[1] == 2 * whole["usage"]["completion_tokens"] + 1


def test_chat_choices_as_the_sdk_reads_them(replica: ReplicaProcess) -> None:
    with openai.OpenAI(base_url=f"{replica.url}/v1", api_key="x", max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": "SmolLM2-135M-Instruct",
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": 8,
            "n": 3,
            "seed": 5,
        }
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    said = ["" for _ in range(3)]
    roles = Counter[int]()
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
    assert said == [choice.message.content for choice in whole.choices]
    assert roles == Counter(range(3))
    assert whole.usage.completion_tokens <= 24


def test_choices_may_end_differently(replica: ReplicaProcess) -> None:
    body = STORY | {"n": 4, "max_tokens": 24}
    whole = replica.post("/v1/completions", body | {"return_token_ids": True}).json
    stop = texts(whole)[2][4:10]
    again = replica.post("/v1/completions", body | {"stop": stop}).json
    reasons = [choice["finish_reason"] for choice in again["choices"]]
    assert reasons[2] == "stop"
    assert "length" in reasons
    assert again["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]
    assert (
        sum(len(c["token_ids"]) for c in whole["choices"]) == (whole["usage"]["completion_tokens"])
    )


def test_abort_ends_all_choices_with_one_count(replica: ReplicaProcess) -> None:
    before = counters(replica)
    connection = replica.connect()
    body = STORY | {"n": 4, "max_tokens": 900, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"x-request-id": "n-1"})
    response = connection.getresponse()
    next_event(response)
    usage = replica.request("POST", abort_path("n-1")).json
    *chunks, last, done = events(response)
    connection.close()
    assert done == "[DONE]"
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert [reason for reason in reasons if reason is not None] == ["abort"] * 4
    assert last["usage"]["completion_tokens"] == usage["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    replica.wait_metric("vllm:num_requests_running", 0)
    assert counters(replica) == (
        before[0] + usage["prompt_tokens"],
        before[1] + usage["completion_tokens"],
    )
    replica.wait_metric("vllm:kv_cache_usage_perc", 0)


def test_leaving_ends_all_choices(replica: ReplicaProcess) -> None:
    connection = replica.connect()
    body = STORY | {"n": 5, "max_tokens": 900, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    replica.wait_metric("vllm:num_requests_running", 5)
    connection.close()
    replica.wait_metric("vllm:num_requests_running", 0)


def test_choices_stay_apart_in_company(replica: ReplicaProcess) -> None:
    """More sequences than run at once, of several requests."""
    seeds = range(1, 6)

    def ask(seed: int) -> list[str]:
        body = STORY | {"n": 3, "seed": seed, "max_tokens": 6}
        return texts(replica.post("/v1/completions", body).json)

    alone = [ask(seed) for seed in seeds]
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, seeds)) == alone
    replica.wait_metric("vllm:num_requests_running", 0)
