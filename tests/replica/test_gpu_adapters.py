"""Adapters on a GPU, or under Triton's interpreter: the tokens that plain torch gives."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from replica.engine.backend import choose_backend
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher
from replica.engine.messages import CpuBackend
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import OpenedModel, open_adapted
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.engine_harness import EngineHarness
from tests.replica.gpu_runs import (
    BLOCK_SIZE,
    GREEDY,
    HERE,
    NUM_BLOCKS,
    backend,
    decode_of,
    gpu_runner,
    settings,
)
from tests.replica.tiny_adapter import save_adapter
from tests.replica.tiny_llama import (
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    VOCAB_SIZE,
)

REQUESTS = [([5], 0), ([1, 2, 3], None), (list(range(1, 19)), 1), ([5], None)]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@pytest.fixture(scope="module")
def adapted(tiny: OpenedModel, tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    """One of all matrices, one of few and of another rank."""
    shape = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, head_dim=HEAD_DIM,
            num_hidden_layers=NUM_LAYERS, num_attention_heads=NUM_HEADS,
            num_key_value_heads=NUM_KV_HEADS, vocab_size=VOCAB_SIZE,
        )
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("adapters")
    whole = save_adapter(folder / "whole", shape, seed=1)
    part = save_adapter(folder / "part", shape, seed=2, rank=3, modules=["v_proj", "down_proj"])
    return open_adapted(tiny.path, {"whole": whole, "part": part})


def texts(runner: ModelRunner, opened: OpenedModel) -> list[str]:
    def launcher(runner: ModelRunner) -> StepLauncher:
        return runner if isinstance(runner, StepLauncher) else InlineLauncher(runner)

    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    digests = [adapter.digest for adapter in opened.adapters]
    engine = EngineHarness(
        runner, names, [], SchedulerLimits(BLOCK_SIZE, 4, 12), NUM_BLOCKS,
        new_launcher=launcher, adapter_digests=digests,
    )  # fmt: skip
    ids = [engine.enqueue(prompt, GREEDY, adapter=adapter) for prompt, adapter in REQUESTS]
    engine.run()
    return [engine.outcomes[i].text for i in ids]


def test_gives_the_tokens_that_torch_gives(adapted: OpenedModel) -> None:
    """Chunks of prompts, and decodes as graphs of padded sizes, of which each row has its own."""
    chosen = choose_backend(settings(cpu_backend=CpuBackend.TORCH).engine_config(), adapted, [])
    expected = texts(chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions()), adapted)
    assert texts(gpu_runner(adapted, is_async_scheduling=True), adapted) == expected
    assert expected[0] != expected[3], "the adapter changes too little"


def test_rows_without_one_keep_every_bit(adapted: OpenedModel, tiny: OpenedModel) -> None:
    runner, plain = gpu_runner(adapted), gpu_runner(tiny)
    batch = decode_of(3)
    second = msgspec.structs.replace(batch.segments[1], adapter=0)
    mixed = replace(batch, segments=[batch.segments[0], second, batch.segments[2]])
    hidden = []
    for each, rows in ((runner, mixed), (runner, batch), (plain, batch)):
        each._cache._parts.zero_()
        hidden.append(each._hidden_states(rows)[1].clone())
    assert torch.equal(hidden[1], hidden[2])
    assert torch.equal(hidden[0][[0, 2]], hidden[1][[0, 2]])
    assert not torch.equal(hidden[0][1], hidden[1][1])


def test_their_memory_is_counted(adapted: OpenedModel, tiny: OpenedModel) -> None:
    config = settings().engine_config()
    with_and_without = [
        backend.DeviceBackend(opened, config, [], HERE) for opened in (adapted, tiny)
    ]
    stacks = with_and_without[0]._loaded(lambda ratio, detail: None).adapters._layers
    taken = sum(
        part.numel() * part.element_size()
        for layer in stacks
        for stack in layer.values()
        for part in (stack.shrink, stack.expand, stack.scales)
    )
    told = [chosen.weights_bytes for chosen in with_and_without]
    assert told[0] - told[1] == taken > 0
