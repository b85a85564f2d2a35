"""Penalties on every path are what plain arithmetic over whole rows of logits says they are."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from kernels.sampling.rows_reference import Penalties, penalize_reference
from replica.engine.backend import choose_backend
from replica.engine.batch import SeenTokens
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher, ThreadLauncher
from replica.engine.messages import CpuBackend, SamplingParams
from replica.engine.penalties import penalize_
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import open_model
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness, NewLauncher
from tests.replica.gpu_runs import BLOCK_SIZE, NUM_BLOCKS, gpu_runner
from tests.replica.test_families import COMPILED_SHAPE, SHAPE, VOCAB_SIZE

NUM_TOKENS = 7
PROMPTS = [[5], [7, 7, 9, 7], list(range(1, 20))]
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.4},
    "all, with a bias": {
        "presence_penalty": -0.5, "frequency_penalty": 0.6, "repetition_penalty": 0.8,
        "logit_bias": {3: 2.0},
    },
}  # fmt: skip


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, **fields)


@given(
    values=st.lists(st.sampled_from([-np.inf, -3.0, -0.0, 0.0, 0.5, 2.0]), min_size=1, max_size=9),
    seen=st.lists(st.integers(0, 8), min_size=1, max_size=20),
    num_prompt_tokens=st.integers(1, 20),
    presence=st.sampled_from([0.0, -2.0, 0.3]),
    frequency=st.sampled_from([0.0, 2.0, -0.7]),
    repetition=st.sampled_from([1.0, 0.5, 1.7]),
)
def test_a_row_is_penalized_as_defined(
    values: list[float],
    seen: list[int],
    num_prompt_tokens: int,
    presence: float,
    frequency: float,
    repetition: float,
) -> None:
    tokens = [token % len(values) for token in seen]
    prompt, completion = tokens[:num_prompt_tokens], tokens[num_prompt_tokens:]
    vocab = range(len(values))
    definition = Penalties(
        counts=torch.tensor([[completion.count(token) for token in vocab]], dtype=torch.int32),
        is_in_prompt=torch.tensor([[token in prompt for token in vocab]]),
        repetition=torch.tensor([repetition]),
        presence=torch.tensor([presence]),
        frequency=torch.tensor([frequency]),
    )
    logits = np.array(values, np.float32)
    (expected,) = penalize_reference(torch.from_numpy(logits.copy())[None], definition).numpy()
    asked = params(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition
    )
    before = SeenTokens(array("q", tokens[:-1]), num_prompt_tokens)
    penalize_(logits, asked, before, tokens[-1])
    np.testing.assert_array_equal(logits, expected)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**(SHAPE | COMPILED_SHAPE))).eval()
    path = tmp_path_factory.mktemp("penalized")
    model.save_pretrained(path)
    return model, path


def expected_tokens(
    model: LlamaForCausalLM, prompt: Sequence[int], asked: SamplingParams
) -> list[int]:
    """The whole text anew for each token; penalties token by token."""
    tokens = list(prompt)
    for _ in range(asked.max_tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1].tolist()
        for token, bias in asked.logit_bias.items():
            logits[token] += bias
        for token in set(tokens):
            factor = asked.repetition_penalty
            logits[token] = logits[token] * (1 / factor if logits[token] > 0 else factor)
        completion = tokens[len(prompt) :]
        for token in set(completion):
            logits[token] -= asked.presence_penalty
            logits[token] -= asked.frequency_penalty * completion.count(token)
        tokens.append(max(range(len(logits)), key=logits.__getitem__))
    return tokens[len(prompt) :]


def cpu_runner(path: Path, cpu_backend: CpuBackend) -> ModelRunner:
    """Of sizes that other tests compile, too."""
    num_threads = 2 if cpu_backend is CpuBackend.COMPILED else 1
    sizes = Settings(cpu_backend=cpu_backend, num_threads=num_threads, max_num_batched_tokens=64)
    return choose_backend(sizes.engine_config(), open_model(path), []).load(
        NUM_BLOCKS, lambda ratio, detail: None, KvOptions(is_poisoned=True)
    )


def engine_of(runner: ModelRunner, new_launcher: NewLauncher) -> EngineHarness:
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(BLOCK_SIZE, 4, 12)
    return EngineHarness(runner, names, [], limits, NUM_BLOCKS, new_launcher=new_launcher)


def answers(engine: EngineHarness, ids: Sequence[int]) -> list[list[int]]:
    engine.run()
    return [[int(token) for token in engine.outcomes[i].text.split()] for i in ids]


@pytest.mark.parametrize("path_name", ["torch", "torch ahead", "compiled", "gpu ahead"])
def test_every_path_gives_what_plain_arithmetic_gives(
    model: tuple[LlamaForCausalLM, Path], path_name: str
) -> None:
    """Each prompt with each penalty and with none, side by side; whole prompts and chunks."""
    theirs, path = model
    place, _, how = path_name.partition(" ")
    if place == "gpu":
        runner = gpu_runner(open_model(path), is_async_scheduling=bool(how))
        new_launcher: NewLauncher = _itself
    else:
        runner = cpu_runner(path, CpuBackend(place))
        new_launcher = ThreadLauncher if how else InlineLauncher
    engine = engine_of(runner, new_launcher)
    cases = [(prompt, params(**fields)) for prompt in PROMPTS for fields in CASES.values()]
    if place == "gpu":  # the interpreter takes its time
        cases = cases[len(CASES) :][: len(CASES)]
    expected = [expected_tokens(theirs, prompt, asked) for prompt, asked in cases]
    ids = [engine.enqueue(prompt, asked) for prompt, asked in cases]
    assert answers(engine, ids) == expected
    plain = [expected[i - i % len(CASES)] for i in range(len(expected))]
    num_changed = sum(one != other for one, other in zip(expected, plain, strict=True))
    assert num_changed > 1, "penalties change too little"


def _itself(runner: ModelRunner) -> StepLauncher:
    assert isinstance(runner, StepLauncher)
    return runner


@pytest.mark.parametrize("cpu_backend", [CpuBackend.TORCH, CpuBackend.COMPILED])
def test_rows_without_any_keep_every_bit(
    model: tuple[LlamaForCausalLM, Path], cpu_backend: CpuBackend
) -> None:
    """Also what is told of penalized rows: the model's own opinion."""
    told = []
    for fields in ({}, CASES["all, with a bias"]):
        engine = engine_of(cpu_runner(model[1], cpu_backend), InlineLauncher)
        asked = [params(num_top_logprobs=5), params(num_top_logprobs=5, **fields)]
        first, second = [engine.enqueue([5, 6, 7], each, str(i)) for i, each in enumerate(asked)]
        engine.run()
        told.append((engine.outcomes[first].logprobs, engine.outcomes[second].logprobs[0]))
    assert told[0][0] == told[1][0]
    assert told[0][1].top_logprobs == told[1][1].top_logprobs


def test_interruptions_change_no_token(model: tuple[LlamaForCausalLM, Path]) -> None:
    """Preempted after each token, begun by another engine, prefix found, several choices."""
    asked = msgspec.structs.replace(
        params(**CASES["all, with a bias"]), temperature=1.5, seed=11, logit_bias={}
    )
    prompt = list(range(1, 20))
    engine = engine_of(cpu_runner(model[1], CpuBackend.TORCH), InlineLauncher)
    first = engine.submit(prompt, asked)
    (expected,) = answers(engine, [first])
    assert len(set(expected)) > 4
    for _ in range(2):
        again = engine.submit(prompt, asked)
        for _ in range(NUM_TOKENS):
            engine.preempt(again)
            engine.step()
            engine.step()
        assert answers(engine, [again]) == [expected]
    assert engine.outcomes[again].usage.cached_prompt_tokens > 0
    for num_resumed in (1, 4):
        resumed = engine.submit(
            prompt + expected[:num_resumed], asked, num_resumed_tokens=num_resumed
        )
        assert answers(engine, [resumed]) == [expected[num_resumed:]]
