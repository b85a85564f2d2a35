"""Tokens a second beside transformers' continuous batching: same shape, same requests, same GPU."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM
from transformers import LlamaConfig as HfConfig

from benchmarks.gpu.engine import BLOCK_SIZE, random_cache, random_model, runner_over
from benchmarks.gpu.measuring import Row
from replica.engine.block_manager import BlockManager
from replica.engine.loop import EngineLoop
from replica.engine.messages import SamplingParams, Submit
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.gpu.device import Device
from replica.model.config import LlamaConfig

_NO_TOKEN = -1  # ends no text


@dataclass(frozen=True)
class Requests:
    count: int
    prompt_tokens: int
    completion_tokens: int
    max_num_seqs: int

    def prompt(self, index: int, vocab: int) -> list[int]:
        """No two begin alike."""
        return [(7919 * index + 31 * i) % vocab for i in range(self.prompt_tokens)]

    @property
    def num_tokens(self) -> int:
        return self.count * self.completion_tokens


FULL = Requests(256, 256, 128, 256)
TINY = Requests(1, 3, 1, 2)


def rows(device: Device, config: LlamaConfig, *, is_tiny: bool) -> Iterator[Row]:
    requests = TINY if is_tiny else FULL
    ours = requests.num_tokens / _our_s(device, config, requests)
    yield Row("peers", "ours", ours, "tokens/s")
    theirs = requests.num_tokens / _transformers_s(device, config, requests)
    yield Row("peers", "transformers' continuous batching", theirs, "tokens/s")
    yield Row("peers", "ours beside theirs", ours / theirs, "x", 3.0)


def _our_s(device: Device, config: LlamaConfig, requests: Requests) -> float:
    """The engine's own loop, scheduler and accounts; no HTTP."""
    per_request = 1 + (requests.prompt_tokens + requests.completion_tokens) // BLOCK_SIZE
    num_blocks = 1 + requests.max_num_seqs * per_request
    model, _ = random_model(device, config)
    runner = runner_over(
        device, model, random_cache(device, config, num_blocks),
        max_num_seqs=requests.max_num_seqs,
        max_context=requests.prompt_tokens + requests.completion_tokens,
    )  # fmt: skip
    limits = SchedulerLimits(BLOCK_SIZE, requests.max_num_seqs, max(2048, requests.max_num_seqs))
    loop = EngineLoop(
        scheduler=Scheduler(limits, BlockManager(num_blocks, 0), []),
        launcher=runner,
        token_bytes=[b"x"] * config.vocab_size,
        identity=PrefixIdentity("random", "random"),
        monotonic_s=time.monotonic,
    )
    params = SamplingParams(max_tokens=requests.completion_tokens, temperature=0.0)
    submits = [
        Submit(
            sequence_id=index + 1,
            prompt_token_ids=requests.prompt(index, config.vocab_size),
            params=params,
            cache_salt="",
        )
        for index in range(requests.count + 1)
    ]
    _answer(loop, submits[-1:])  # what is done once for all, untimed, here as there
    started = time.perf_counter()
    _answer(loop, submits[:-1])
    return time.perf_counter() - started


def _answer(loop: EngineLoop, submits: list[Submit]) -> None:
    loop.step(submits)
    while loop.step([]) is not None:
        pass


def _transformers_s(device: Device, config: LlamaConfig, requests: Requests) -> float:
    """Its graphs captured before, and one request answered."""
    generation = GenerationConfig(
        do_sample=False, eos_token_id=_NO_TOKEN, pad_token_id=0,
        max_new_tokens=requests.completion_tokens,
    )  # fmt: skip
    with _hf_model(device, config).continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=_batching(device),
        warmup=device.torch_device.type == "cuda",
    ) as manager:  # fmt: skip
        prompts = [requests.prompt(i, config.vocab_size) for i in range(requests.count + 1)]
        _answer_theirs(manager, prompts[-1:])
        started = time.perf_counter()
        _answer_theirs(manager, prompts[:-1])
        return time.perf_counter() - started


def _answer_theirs(manager: Any, prompts: list[list[int]]) -> None:  # it has no types
    for prompt in prompts:
        manager.add_request(prompt)
    num_finished = 0
    while num_finished < len(prompts):
        result = manager.get_result(timeout=60)
        if result is None or result.error:
            raise RuntimeError(f"transformers gave no tokens: {result and result.error}")
        num_finished += result.is_finished()


def _hf_model(device: Device, config: LlamaConfig) -> Any:  # its base has no types
    config_class: Any = HfConfig  # made from a decorator that hides what its base takes
    hf_config = config_class(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(device.default_dtype)
    try:
        with torch.device(device.torch_device):
            return LlamaForCausalLM(hf_config).eval()
    finally:
        torch.set_default_dtype(before)


def _batching(device: Device) -> ContinuousBatchingConfig:
    """On a GPU as it comes; on a CPU small, and without what a CPU has not."""
    if device.torch_device.type == "cuda":
        return ContinuousBatchingConfig()
    return ContinuousBatchingConfig(
        page_size=32, num_blocks=16, max_batch_tokens=64, allow_block_sharing=False,
        use_cuda_graph=False, use_async_batching=False,
    )  # fmt: skip
