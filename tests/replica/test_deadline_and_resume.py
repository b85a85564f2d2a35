"""Requests that end by the clock, and requests that go on where another replica left off."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.engine.messages import FinishReason, SamplingParams, Usage
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import STEP_S, EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.replica_process import ReplicaProcess, events
from tests.replica.workload import check_counters

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def harness(*, max_num_seqs: int = 4) -> EngineHarness:
    return EngineHarness(
        HashModel(4), TOKEN_BYTES, [EOS], SchedulerLimits(4, max_num_seqs, 16), num_blocks=64
    )


def test_deadline_ends_a_running_request_with_what_it_has() -> None:
    engine = harness()
    late = engine.submit(PROMPT, PARAMS, time_left_s=10.5 * STEP_S)
    other = engine.submit([7], PARAMS)
    engine.run()
    outcome = engine.outcomes[late]
    assert outcome.finish_reason is FinishReason.DEADLINE
    assert outcome.usage == Usage(prompt_tokens=8, completion_tokens=outcome.num_tokens)
    assert outcome.num_tokens == 11
    assert engine.outcomes[other].num_tokens == 40
    check_counters(engine)


def test_deadline_ends_a_waiting_request_and_counts_nothing() -> None:
    engine = harness(max_num_seqs=1)
    engine.submit([7], PARAMS)
    late = engine.submit(PROMPT, PARAMS, time_left_s=3 * STEP_S)
    engine.run()
    assert engine.outcomes[late].finish_reason is FinishReason.DEADLINE
    assert engine.outcomes[late].usage == Usage()
    check_counters(engine)


def test_deadline_that_is_over_on_arrival_costs_no_step() -> None:
    engine = harness()
    late = engine.submit(PROMPT, PARAMS, time_left_s=-1.0)
    assert engine.outcomes[late].finish_reason is FinishReason.DEADLINE
    assert engine.outcomes[late].usage == Usage()


def test_deadline_after_the_end_changes_nothing() -> None:
    engine = harness()
    done = engine.submit(PROMPT, PARAMS, time_left_s=1000.0)
    engine.run()
    assert engine.outcomes[done].finish_reason is FinishReason.LENGTH


@settings(max_examples=200, deadline=None)
@given(
    num_resumed=st.integers(0, 39),
    stop_at=st.one_of(st.none(), st.integers(0, 30)),
    stop_length=st.integers(1, 6),
    min_tokens=st.integers(0, 30),
)
def test_resumed_stream_is_the_rest_of_the_whole_one(
    num_resumed: int, stop_at: int | None, stop_length: int, min_tokens: int
) -> None:
    """Also when a stop string begins before the move and ends after it."""
    tokens = reference_completion(PROMPT, PARAMS)
    text = b"".join(TOKEN_BYTES[t] for t in tokens).decode()
    stop = () if stop_at is None else (text[stop_at : stop_at + stop_length] or "never",)
    params = SamplingParams(max_tokens=40, ignore_eos=True, stop=stop, min_tokens=min_tokens)

    whole, cut = harness(), harness()
    whole_id = whole.submit(PROMPT, params)
    cut_id = cut.submit(PROMPT, params)
    while whole.outcomes[whole_id].finish_reason is None:
        whole.step()
    while cut.outcomes[cut_id].finish_reason is None and cut.outcomes[cut_id].num_tokens < (
        num_resumed
    ):
        cut.step()
    if cut.outcomes[cut_id].finish_reason is not None:
        return
    sent = cut.outcomes[cut_id]
    done = tokens_of(whole, whole_id, params)[: sent.num_tokens]
    rest = harness()
    rest_id = rest.submit([*PROMPT, *done], params, num_resumed_tokens=len(done))
    rest.run()
    assert sent.text + rest.outcomes[rest_id].text == whole.outcomes[whole_id].text
    assert rest.outcomes[rest_id].finish_reason is whole.outcomes[whole_id].finish_reason
    assert rest.outcomes[rest_id].usage == Usage(
        prompt_tokens=len(PROMPT) + len(done),
        completion_tokens=whole.outcomes[whole_id].num_tokens - len(done),
    )
    check_counters(rest)


def tokens_of(engine: EngineHarness, sequence_id: int, params: SamplingParams) -> list[int]:
    return reference_completion(PROMPT, params)[: engine.outcomes[sequence_id].num_tokens]


def test_deadline_over_http(replica: ReplicaProcess) -> None:
    body = {"prompt": "Count on:", "max_tokens": 900, "ignore_eos": True, "max_time_s": 0.5}
    answer = replica.post("/v1/completions", body)
    assert answer.status == 200
    assert answer.json["choices"][0]["finish_reason"] == "deadline"
    assert answer.json["usage"]["completion_tokens"] < 900


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 11}])
def test_answer_goes_on_over_http(replica: ReplicaProcess, sampling: dict[str, object]) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True} | sampling
    whole = replica.post("/v1/completions", body | {"return_token_ids": True}).json["choices"][0]
    assert len(whole["token_ids"]) == 12
    tokens = whole["token_ids"][:5]
    begun = replica.post("/detokenize", {"tokens": tokens}).json["prompt"]
    rest = replica.post("/v1/completions", body | {"resume_tokens": tokens}).json
    assert begun + rest["choices"][0]["text"] == whole["text"]
    assert rest["usage"]["completion_tokens"] == 7
    assert "token_ids" not in rest["choices"][0]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streamed_token_ids_are_those_of_the_whole_answer(
    replica: ReplicaProcess, path: str
) -> None:
    body: dict[str, object] = {"max_tokens": 9, "temperature": 0, "return_token_ids": True}
    body |= {"prompt": "🦜🦜🦜", "messages": [{"role": "user", "content": "🦜"}]}
    whole = replica.post(path, body).json["choices"][0]["token_ids"]
    connection = replica.connect()
    connection.request("POST", path, json.dumps(body | {"stream": True}))
    chunks = [e for e in events(connection.getresponse()) if e != "[DONE]"]
    connection.close()
    streamed = [t for c in chunks for t in c["choices"][0].get("token_ids", [])]
    assert streamed == whole
