"""Every family gives the tokens that transformers gives, from a checkpoint made on the spot."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from replica.engine.backend import choose_backend
from replica.engine.messages import CpuBackend, SamplingParams
from replica.engine.runner import TorchRunner
from replica.engine.scheduler import SchedulerLimits
from replica.model.adapted_rows import TorchAdapters
from replica.model.loader import open_model
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness

VOCAB_SIZE = 64
NUM_NEW_TOKENS = 12
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Wide enough for choices that differ from token to token.
    "initializer_range": 0.5,
}
WINDOWS_IN_SOME_LAYERS = {
    "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2}
QWEN3_EXPERTS = EXPERTS | {
    "num_experts": 6, "moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 16,
}  # fmt: skip
# Of short contexts first, so that of eight frequencies some are kept, some scaled, one is between.
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
ROPES: dict[str, dict[str, Any]] = {
    "llama3": LLAMA3_ROPE,
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "beta_fast": 4.0,
        "original_max_position_embeddings": 32,
    },
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama 3.1": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16, "rope_parameters": LLAMA3_ROPE}),
    "llama linear": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": ROPES["linear"]}),
    "qwen3 yarn": (Qwen3Config, Qwen3ForCausalLM, {"rope_parameters": ROPES["yarn"]}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 16}),
    "mistral wide window": (MistralConfig, MistralForCausalLM, {"sliding_window": 4096}),
    "mistral narrow window": (MistralConfig, MistralForCausalLM, {"sliding_window": 9}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2 tied": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2 windows": (Qwen2Config, Qwen2ForCausalLM, WINDOWS_IN_SOME_LAYERS),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, EXPERTS | {"num_local_experts": 5}),
    "qwen3 experts": (Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_EXPERTS),
    "qwen3 shares as they are": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        QWEN3_EXPERTS | {"norm_topk_prob": False},
    ),
    "qwen3 narrow heads": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
}
PROMPTS = [[5], [1, 2, 3], list(range(1, 40)), [7, 7, 7, 7, 7, 7, 7, 7], list(range(60, 20, -1))]


@pytest.fixture(params=FAMILIES, ids=str)
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Saved to ``tmp_path``.  Norms and biases are not left at their neutral ones and zeros."""
    config_type, model_type, changes = FAMILIES[request.param]
    torch.manual_seed(7)
    model = model_type(config_type(**(SHAPE | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path)
    return model


def greedy(reference: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("max_num_batched_tokens", [6, 256], ids=["small chunks", "large chunks"])
def test_greedy_tokens_equal_those_of_transformers(
    reference: Any, tmp_path: Path, max_num_batched_tokens: int
) -> None:
    expected = [greedy(reference, prompt) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 10, "the model says too little"
    model = open_model(tmp_path).load(lambda ratio: None)
    none = TorchAdapters((), model.config)
    runner = TorchRunner(model, none, num_blocks=64, block_size=8, eos_token_ids=[])
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(8, 6, max_num_batched_tokens)
    engine = EngineHarness(runner, names, [], limits, num_blocks=64)
    params = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    ids = engine.submit_together(PROMPTS, params)
    engine.run()
    assert [[int(t) for t in engine.outcomes[i].text.split()] for i in ids] == expected


@pytest.mark.parametrize("window", [9, 70])
def test_the_compiled_step_sees_the_same_window(window: int, tmp_path: Path) -> None:
    """Decodes and chunks, within and across the 64 keys that kernels take at once."""
    changes = COMPILED_SHAPE | {"sliding_window": window}
    torch.manual_seed(7)
    reference = MistralForCausalLM(MistralConfig(**(SHAPE | changes))).eval()
    reference.save_pretrained(tmp_path)
    prompts = [*PROMPTS, [(7 * i) % VOCAB_SIZE for i in range(100)]]
    assert engine_greedy(tmp_path, prompts) == [greedy(reference, prompt) for prompt in prompts]


@pytest.mark.parametrize("rope", ROPES)
def test_the_compiled_step_turns_as_far(rope: str, tmp_path: Path) -> None:
    expected: list[list[list[int]]] = []
    for parameters in ({"rope_type": "default", "rope_theta": 10_000.0}, ROPES[rope]):
        torch.manual_seed(7)
        changes = COMPILED_SHAPE | {"rope_parameters": parameters}
        reference = LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))).eval()
        expected.append([greedy(reference, prompt) for prompt in PROMPTS])
    assert expected[0] != expected[1], "the scaling changes nothing"
    reference.save_pretrained(tmp_path)
    assert engine_greedy(tmp_path, PROMPTS) == expected[1]


COMPILED_SHAPE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 64}


def engine_greedy(
    path: Path, prompts: list[list[int]], cpu_backend: CpuBackend = CpuBackend.COMPILED
) -> list[list[int]]:
    settings = Settings(cpu_backend=cpu_backend, num_threads=2, max_num_batched_tokens=64)
    backend = choose_backend(settings.engine_config(), open_model(path), [])
    runner = backend.load(64, lambda ratio, detail: None)
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    engine = EngineHarness(runner, names, [], SchedulerLimits(16, 8, 64), num_blocks=64)
    params = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    ids = engine.submit_together(prompts, params)
    engine.run()
    return [[int(t) for t in engine.outcomes[i].text.split()] for i in ids]


def test_weights_take_what_was_announced(reference: Any, tmp_path: Path) -> None:
    numbers = sum(p.numel() for p in reference.parameters())  # tied ones are listed once
    assert open_model(tmp_path).weights_bytes == 4 * numbers
