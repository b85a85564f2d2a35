"""Model files of every kind of damage: a ModelError with a reason, in the state and in the log."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.errors import ModelError
from replica.model.config import config_from_gguf, config_from_hf
from replica.model.damage import blaming
from replica.model.loader import open_model
from replica.model.tokenizer_loader import load_tokenizer, tokenizer_from_gguf
from tests.replica.conftest import FIXED_NOW
from tests.replica.replica_process import ReplicaProcess
from tests.replica.test_model_files import GGUF, TINY
from tests.replica.test_tokenizer import tiny_metadata

ODD_VALUES = st.sampled_from([None, -1, 0, 1.5, "x", [], {}, [1], {"a": 1}, True, 1 << 40])


def odd(metadata: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One to three fields of another type or value."""
    changes = st.dictionaries(st.sampled_from(sorted(metadata)), ODD_VALUES, min_size=1, max_size=3)
    return changes.map(lambda change: metadata | change)


def load_only_or_refuse(load: Any, metadata: dict[str, Any]) -> None:
    """Raises anything but ModelError: a test that fails."""
    with suppress(ModelError), blaming(Path("m.gguf")):
        load(metadata)


@settings(max_examples=300, deadline=None)
@given(odd(GGUF))
def test_odd_gguf_metadata_is_refused(metadata: dict[str, Any]) -> None:
    load_only_or_refuse(config_from_gguf, metadata)


@settings(max_examples=300, deadline=None)
@given(odd({"model_type": "llama", "rms_norm_eps": 1e-5, "rope_scaling": None, **TINY}))
def test_odd_hf_config_is_refused(metadata: dict[str, Any]) -> None:
    load_only_or_refuse(config_from_hf, metadata)


@settings(max_examples=300, deadline=None)
@given(odd(tiny_metadata()))
def test_odd_gguf_tokenizer_is_refused(metadata: dict[str, Any]) -> None:
    load_only_or_refuse(lambda m: tokenizer_from_gguf(m, lambda: FIXED_NOW), metadata)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(payload=st.one_of(st.binary(max_size=40), st.sampled_from([b"[]", b"{}", b"null", b"1"])))
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_any_bytes_in_a_model_folder_are_refused(tmp_path: Path, name: str, payload: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rms_norm_eps": 1e-5}))
    (tmp_path / name).write_bytes(payload)
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path, lambda: FIXED_NOW)
    with pytest.raises(ModelError):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"m.gguf": b"GGUF\x03\x00\x00\x00" + bytes(8)}, "not a readable GGUF"),
        ({"m.gguf": b""}, "does not begin with 'GGUF'"),
        ({"m/config.json": b"{}", "m/tokenizer.json": b"{}"}, "tokenizer.json"),
        ({"m/config.json": b"[]"}, "tokenizer.json is missing"),
        ({"m/tokenizer.json": b"{}"}, "holds no config.json"),
    ],
    ids=["cut off", "empty", "odd tokenizer", "no tokenizer", "no model"],
)
def test_reason_is_the_last_line_of_the_log(
    tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    (tmp_path / "m").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    model = tmp_path / "m.gguf" if "m.gguf" in files else tmp_path / "m"
    with ReplicaProcess(tmp_path / "log", model=model) as replica:
        assert replica.process.wait() == 1
        lines = replica.log.splitlines()
    assert reason in json.loads(lines[-1])["error"]
    assert "Traceback" not in replica.log
