"""Scaled rotary frequencies on a GPU, or under the interpreter: the tokens transformers gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.kernels.triton_runs import poisoned_memory
from tests.replica.gpu_runs import SHAPE, greedy_tokens
from tests.replica.test_families import ROPES, greedy

NUM_TOKENS = 4
PROMPTS = [[5], list(range(1, 31))]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@pytest.mark.parametrize("rope", ["llama3", "yarn"])
def test_gives_the_tokens_that_transformers_gives(rope: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=ROPES[rope])).eval()
    model.save_pretrained(tmp_path)
    found = greedy_tokens(tmp_path, PROMPTS, NUM_TOKENS)
    assert found == [greedy(model, prompt)[:NUM_TOKENS] for prompt in PROMPTS]
