"""The model every replica test runs, fetched once into a cache that outlives the tests."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from replica.model import store
from replica.model.loader import OpenedModel, open_model
from replica.model.tokenizer import Tokenizer
from replica.model.tokenizer_loader import load_tokenizer
from replica.settings import default_cache_dir
from tests.replica.replica_process import ReplicaProcess
from tests.replica.tiny_llama import SHAPES, Kind, write_gguf

MODEL_NAME = "SmolLM2-135M-Instruct"
FIXED_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="session")
def model_cache_dir() -> Path:
    configured = os.environ.get("PANDAL_MODEL_CACHE")
    return Path(configured) if configured else default_cache_dir()


@pytest.fixture(scope="session")
def model_path(model_cache_dir: Path) -> Path:
    return store.resolve(MODEL_NAME, model_cache_dir, lambda ratio: None)


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return load_tokenizer(model_path, lambda: FIXED_NOW)


@pytest.fixture(scope="session")
def replica_settings(model_path: Path, model_cache_dir: Path) -> dict[str, object]:
    """Small enough to start anywhere; ``model_path`` so that no test waits for a download."""
    return {
        "model": MODEL_NAME,
        "model_cache_dir": model_cache_dir,
        "max_model_len": 1024,
        "kv_cache_bytes": 256 << 20,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "is_kv_poisoned": True,
    }


@pytest.fixture(scope="session")
def replica(
    replica_settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaProcess]:
    log_path = tmp_path_factory.mktemp("replica") / "log"
    with ReplicaProcess(log_path, **replica_settings) as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="session")
def tiny_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    """Random weights, a vocabulary of bytes: whole answers in a millisecond."""
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    directory = tmp_path_factory.mktemp("tiny")
    model = directory / "tiny"
    save_tiny_model(model, context_length=128)
    settings = {"model": model, "max_model_len": 128, "kv_cache_bytes": 1 << 20, "max_num_seqs": 8}
    with ReplicaProcess(directory / "log", **settings, num_threads=1) as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    """A few thousand random weights in 16 bits, on disk."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, dict.fromkeys((*SHAPES, "token_embd"), Kind.F16))
    return open_model(path)
