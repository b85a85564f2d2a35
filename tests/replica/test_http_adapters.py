"""Adapters over HTTP: asked for by name, listed with their model, told in the journal."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replica.replica_process import ReplicaProcess
from tests.replica.test_http_witness import witnessed

PROMPT = {"prompt": "abcdefgh", "max_tokens": 8, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    from transformers import LlamaForCausalLM

    from tests.replica.tiny_adapter import save_adapter
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    directory = tmp_path_factory.mktemp("adapted")
    save_tiny_model(directory / "tiny", context_length=128)
    base = LlamaForCausalLM.from_pretrained(directory / "tiny")
    adapters = {
        name: str(save_adapter(directory / name, base, seed=seed))
        for seed, name in enumerate(("law", "org/poetry"))
    }
    with ReplicaProcess(
        directory / "log",
        model=directory / "tiny",
        adapters=json.dumps(adapters),
        max_model_len=128,
        kv_cache_bytes=1 << 20,
        num_threads=1,
        usage_journal_dir=directory / "journal",
    ) as process:
        process.wait_ready()
        yield process


def token_ids(replica: ReplicaProcess, model: str, request_id: str = "r") -> list[int]:
    answer = replica.post(
        "/v1/completions", PROMPT | {"model": model}, {"x-request-id": request_id}
    )
    assert answer.status == 200
    assert answer.json["model"] == model.removeprefix("tiny:")
    ids: list[int] = answer.json["choices"][0]["token_ids"]
    return ids


def test_each_name_is_a_model_of_its_own(adapted: ReplicaProcess) -> None:
    answers = [token_ids(adapted, name) for name in ("tiny", "law", "org/poetry")]
    assert len(set(map(tuple, answers))) == 3
    assert token_ids(adapted, "tiny:law") == answers[1]
    assert token_ids(adapted, "tiny") == answers[0]


def test_they_are_listed_with_whose_they_are(adapted: ReplicaProcess) -> None:
    listed = adapted.get("/v1/models").json["data"]
    parents = {card["id"]: card["parent"] for card in listed}
    assert parents == {"tiny": None, "law": "tiny", "org/poetry": "tiny"}


@pytest.mark.parametrize("name", ["tiny:", "tiny:none", "law:law", "tiny:tiny", "LAW"])
def test_no_other_name_exists(adapted: ReplicaProcess, name: str) -> None:
    answer = adapted.post("/v1/completions", PROMPT | {"model": name})
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


def test_the_journal_tells_whose_count_it_was(adapted: ReplicaProcess) -> None:
    token_ids(adapted, "tiny:law", "of-law")
    token_ids(adapted, "tiny", "of-none")
    of_law, of_none = (witnessed(adapted, name) for name in ("of-law", "of-none"))
    assert (of_law.model, of_law.adapter, of_law.adapter_of) == ("law", "law", "tiny")
    assert (of_none.model, of_none.adapter, of_none.adapter_of) == ("tiny", None, None)
    assert of_law.output_text_tokens == 8


def test_a_folder_that_is_none_fails_the_load_by_name(tmp_path: Path) -> None:
    from tests.replica.tiny_hf import save_tiny_model

    save_tiny_model(tmp_path / "tiny", context_length=128)
    adapters = json.dumps({"law": str(tmp_path / "nowhere")})
    with ReplicaProcess(tmp_path / "log", model=tmp_path / "tiny", adapters=adapters) as replica:
        assert replica.process.wait(120) == 1
        assert "nowhere" in replica.log
