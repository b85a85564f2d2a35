"""Scaled rotary frequencies on a GPU, or under the interpreter: the tokens transformers gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from replica.engine.messages import SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import open_model
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.engine_harness import EngineHarness
from tests.replica.gpu_runs import BLOCK_SIZE, NUM_BLOCKS, gpu_runner
from tests.replica.test_families import LLAMA3_ROPE, VOCAB_SIZE, greedy

NUM_TOKENS = 4
PROMPTS = [[5], list(range(1, 31))]
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


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def test_gives_the_tokens_that_transformers_gives(tmp_path: Path) -> None:
    """Chunks of prompts, and decodes as graphs of padded sizes."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE)).eval()
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
