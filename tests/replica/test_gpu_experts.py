"""Mixtures of experts on a GPU, or under the interpreter: the tokens that transformers gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from replica.engine.messages import Precision, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.errors import ModelUnsupported
from replica.model.loader import open_model
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.engine_harness import EngineHarness
from tests.replica.gpu_runs import BLOCK_SIZE, HERE, NUM_BLOCKS, backend, gpu_runner, settings
from tests.replica.test_families import QWEN3_EXPERTS, greedy

NUM_TOKENS = 4
PROMPTS = [[5], [1, 2, 3], list(range(1, 19))]
VOCAB_SIZE = 64
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
}
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
    """Chunks of prompts, and decodes as graphs of padded sizes."""
    config_type, model_type, changes = FAMILIES[family]
    torch.manual_seed(7)
    model = model_type(config_type(**(SHAPE | changes))).eval()
    model.save_pretrained(tmp_path)
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    runner = gpu_runner(open_model(tmp_path), is_async_scheduling=True)
    engine = EngineHarness(
        runner, names, [], SchedulerLimits(BLOCK_SIZE, 4, 12), NUM_BLOCKS,
        new_launcher=lambda runner: runner,
    )  # fmt: skip
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    ids = engine.submit_together(PROMPTS, params)
    engine.run()
    found = [[int(token) for token in engine.outcomes[i].text.split()] for i in ids]
    assert found == [greedy(model, prompt)[:NUM_TOKENS] for prompt in PROMPTS]
    rounded = settings(precision=Precision.FLOAT8).engine_config()
    with pytest.raises(ModelUnsupported, match="experts are computed in 16 bits"):
        backend.DeviceBackend(open_model(tmp_path), rounded, [], HERE)
