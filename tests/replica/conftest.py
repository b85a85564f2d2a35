"""The model every replica test runs, fetched once into a cache that outlives the tests."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from replica.model import store
from replica.model.tokenizer import Tokenizer
from replica.model.tokenizer_loader import load_tokenizer

MODEL_NAME = "SmolLM2-135M-Instruct"
FIXED_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="session")
def model_cache_dir() -> Path:
    configured = os.environ.get("PANDAL_MODEL_CACHE")
    return Path(configured) if configured else store.default_cache_dir()


@pytest.fixture(scope="session")
def model_path(model_cache_dir: Path) -> Path:
    return store.resolve(MODEL_NAME, model_cache_dir, lambda ratio: None)


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return load_tokenizer(model_path, lambda: FIXED_NOW)
