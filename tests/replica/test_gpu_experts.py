"""Mixtures of experts on a GPU, or under the interpreter: the tokens that transformers gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from replica.engine.messages import Precision
from replica.errors import ModelUnsupported
from replica.model.loader import open_model
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.gpu_runs import HERE, SHAPE, backend, greedy_tokens, settings
from tests.replica.test_families import QWEN3_EXPERTS, greedy

NUM_TOKENS = 4
PROMPTS = [[5], [1, 2, 3], list(range(1, 19))]
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 3}),
    "qwen3": (Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_EXPERTS),
}


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_gives_the_tokens_that_transformers_gives(family: str, tmp_path: Path) -> None:
    config_type, model_type, changes = FAMILIES[family]
    torch.manual_seed(7)
    model = model_type(config_type(**(SHAPE | changes))).eval()
    model.save_pretrained(tmp_path)
    found = greedy_tokens(tmp_path, PROMPTS, NUM_TOKENS)
    assert found == [greedy(model, prompt)[:NUM_TOKENS] for prompt in PROMPTS]
    rounded = settings(precision=Precision.FLOAT8).engine_config()
    with pytest.raises(ModelUnsupported, match="experts are computed in 16 bits"):
        backend.DeviceBackend(open_model(tmp_path), rounded, [], HERE)
