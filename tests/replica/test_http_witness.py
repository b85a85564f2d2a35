"""A replica's own count of each request that it was asked, and its journal's disk that is late."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.replica_api import abort_path
from contracts.replica_usage import ReplicaUsage
from tests.replica.replica_process import ReplicaProcess, next_event
from tests.replica.test_usage_journal import read
from tests.support.waiting import eventually

NUM_EARLY = 3
ACCOUNT = {"x-pandal-event-id": "event-1", "x-pandal-tenant-id": "acme"}


@pytest.fixture(scope="module")
def journaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    """Its disk takes nothing at first."""
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    directory = tmp_path_factory.mktemp("journaling")
    save_tiny_model(directory / "tiny", context_length=4096)
    with ReplicaProcess(
        directory / "log",
        model=directory / "tiny",
        max_num_seqs=8,
        kv_cache_bytes=16 << 20,
        num_threads=1,
        usage_journal_dir=directory / "journal",
    ) as process:
        process.wait_ready()
        journal_of(process).write_text("in the way")
        for number in range(NUM_EARLY):
            headers = {"x-request-id": f"early-{number}"}
            answer = process.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}, headers)
            assert answer.status == 200
        eventually(lambda: "usage journal cannot be written" in process.log, "its failure")
        process.wait_metric("pandal:usage_journal_written_total", 0)
        journal_of(process).unlink()
        yield process


def journal_of(replica: ReplicaProcess) -> Path:
    return replica.log_path.parent / "journal"


def witnessed(replica: ReplicaProcess, request_id: str) -> ReplicaUsage:
    def find() -> ReplicaUsage | None:
        folder = journal_of(replica)
        found = [usage for usage in read(folder) if usage.request_id == request_id]
        return found[0] if found else None

    eventually(lambda: find() is not None, "no record was kept")
    usage = find()
    assert usage is not None
    return usage


def test_an_answer_is_witnessed(journaling: ReplicaProcess) -> None:
    body = {"prompt": "a prompt of some length, told twice", "max_tokens": 5, "ignore_eos": True}
    for request_id in ("whole-1", "whole-2"):
        headers = {"x-request-id": request_id, **ACCOUNT}
        told = journaling.post("/v1/completions", body, headers).json["usage"]
    usage = witnessed(journaling, "whole-2")
    assert (usage.event_id, usage.tenant_id, usage.model) == ("event-1", "acme", "tiny")
    assert (usage.endpoint, usage.is_stream) == ("completions", False)
    assert (usage.finish_reasons, usage.is_final) == (("length",), True)
    assert usage.input_cache_read_tokens == told["prompt_tokens_details"]["cached_tokens"] > 0
    num_input = usage.input_uncached_tokens + usage.input_cache_read_tokens
    assert (num_input, usage.output_text_tokens) == (told["prompt_tokens"], 5)
    assert usage.arrived_at <= usage.finished_at
    assert usage.replica_seq == witnessed(journaling, "whole-1").replica_seq + 1


def test_choices_are_witnessed_together(journaling: ReplicaProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 5, "ignore_eos": True, "n": 3}
    told = journaling.post("/v1/completions", body, {"x-request-id": "choices"}).json["usage"]
    usage = witnessed(journaling, "choices")
    assert (usage.event_id, usage.tenant_id) == (None, None)
    assert usage.finish_reasons == ("length",) * 3
    assert usage.output_text_tokens == told["completion_tokens"] == 15
    assert usage.input_uncached_tokens + usage.input_cache_read_tokens == told["prompt_tokens"]


def test_resumed_tokens_are_told_apart(journaling: ReplicaProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 9, "ignore_eos": True, "resume_tokens": [1, 2, 3]}
    told = journaling.post("/v1/completions", body, {"x-request-id": "resumed"}).json["usage"]
    usage = witnessed(journaling, "resumed")
    assert usage.resumed_tokens == 3
    assert (usage.output_text_tokens, told["completion_tokens"]) == (6, 6)
    num_input = usage.input_uncached_tokens + usage.input_cache_read_tokens
    assert num_input == told["prompt_tokens"]


def test_a_client_that_left_is_witnessed_as_the_engine_counted(journaling: ReplicaProcess) -> None:
    connection = journaling.connect()
    body = {"prompt": "ab", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"x-request-id": "left"})
    response = connection.getresponse()
    next_event(response)
    connection.close()
    response.close()
    usage = witnessed(journaling, "left")
    told = journaling.request("POST", abort_path("left")).json
    assert usage.finish_reasons == ("abort",)
    assert usage.is_stream
    assert 0 < usage.output_text_tokens == told["completion_tokens"] < 4000


def test_what_the_engine_was_never_given_is_not_witnessed(journaling: ReplicaProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 0}
    answer = journaling.post("/v1/completions", body, {"x-request-id": "refused"})
    assert answer.status == 400
    journaling.post("/v1/completions", body | {"max_tokens": 1}, {"x-request-id": "after"})
    witnessed(journaling, "after")
    assert all(usage.request_id != "refused" for usage in read(journal_of(journaling)))


@pytest.mark.parametrize(
    ("name", "value"), [("x-pandal-tenant-id", "No Tenant"), ("x-pandal-event-id", "x" * 201)]
)
def test_an_account_that_cannot_be_is_refused_by_name(
    journaling: ReplicaProcess, name: str, value: str
) -> None:
    answer = journaling.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {name: value})
    assert answer.status == 400
    assert answer.json["error"]["param"] == name


def test_neither_prompts_nor_answers_are_kept(journaling: ReplicaProcess) -> None:
    body = {"prompt": "SECRET-PROMPT", "max_tokens": 4, "ignore_eos": True, "cache_salt": "SALT"}
    text = journaling.post("/v1/completions", body, {"x-request-id": "secret"}).json["choices"][0]
    witnessed(journaling, "secret")
    kept = b"".join(path.read_bytes() for path in journal_of(journaling).iterdir()).decode()
    assert not any(word in kept for word in ("SECRET", "SALT", text["text"]))


def test_records_are_metrics(journaling: ReplicaProcess) -> None:
    before = journaling.metric("pandal:usage_journal_written_total")
    journaling.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    journaling.wait_metric("pandal:usage_journal_written_total", before + 1)
    assert journaling.metric("pandal:usage_journal_lost_total") == 0


def test_serving_goes_on_without_the_journals_disk(journaling: ReplicaProcess) -> None:
    """And what was counted meanwhile is written when the disk is there again."""
    seqs = [witnessed(journaling, f"early-{n}").replica_seq for n in range(NUM_EARLY)]
    assert seqs == list(range(1, NUM_EARLY + 1))
    assert journaling.log.count("usage journal cannot be written") == 1
