"""Steps on a GPU, or under Triton's interpreter: the same tokens as plain torch gives."""

from array import array
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from replica.engine.backend import choose_backend
from replica.engine.batch import FlatBatch, SampledRow, SeenTokens, Segment
from replica.engine.kv_blocks import KvOptions
from replica.engine.kv_operations import CopyIn, CopyOut, Vacate
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher
from replica.engine.messages import (
    CpuBackend,
    KvCacheDtype,
    SamplingParams,
)
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import OpenedModel
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.engine_harness import EngineHarness, Outcome
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
from tests.replica.tiny_llama import VOCAB_SIZE

decode_graphs = pytest.importorskip("replica.gpu.decode_graphs")
inputs = pytest.importorskip("replica.gpu.inputs")

PROMPTS = [[5], [1, 2, 3], list(range(1, 19))]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def torch_runner(tiny: OpenedModel) -> ModelRunner:
    chosen = choose_backend(settings(cpu_backend=CpuBackend.TORCH).engine_config(), tiny, [])
    return chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(2, is_poisoned=True))


def outcomes(runner: ModelRunner, params: SamplingParams) -> list[Outcome]:
    names = [b"%d " % i for i in range(VOCAB_SIZE)]

    def launcher(runner: ModelRunner) -> StepLauncher:
        return runner if isinstance(runner, StepLauncher) else InlineLauncher(runner)

    limits = SchedulerLimits(BLOCK_SIZE, 4, 12)
    engine = EngineHarness(runner, names, [], limits, NUM_BLOCKS, new_launcher=launcher)
    ids = engine.submit_together(PROMPTS, params)
    engine.run()
    return [engine.outcomes[i] for i in ids]


DRAWN = SamplingParams(
    max_tokens=3,
    temperature=1.3,
    top_k=20,
    top_p=0.9,
    seed=7,
    num_top_logprobs=3,
    logit_bias={7: 1.5, 9: -100.0},
    frequency_penalty=0.4,
)


@pytest.mark.parametrize(
    ("params", "is_async_scheduling"),
    [(GREEDY, False), (DRAWN, True)],
    ids=["greedy-in-turn", "drawn-ahead"],
)
def test_gives_the_tokens_that_torch_gives(
    tiny: OpenedModel, params: SamplingParams, is_async_scheduling: bool
) -> None:
    """Chunks of prefill, decodes as graphs of padded sizes, and tokens that never came here."""
    runner = gpu_runner(tiny, is_async_scheduling=is_async_scheduling)
    assert runner.num_ahead == int(is_async_scheduling)
    results = outcomes(runner, params)
    expected = outcomes(torch_runner(tiny), params)
    texts = [outcome.text for outcome in results]
    assert texts == [outcome.text for outcome in expected]
    assert len(set(" ".join(texts).split())) > 4, "the model says too little"
    for ours, theirs in zip(results, expected, strict=True):
        assert len(ours.logprobs) == (0 if params.num_top_logprobs is None else params.max_tokens)
        for told, right in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert told.top_token_ids == right.top_token_ids
            assert told.top_logprobs == pytest.approx(right.top_logprobs, abs=1e-3)
            assert told.logprob == pytest.approx(right.logprob, abs=1e-3)


def test_logprobs_are_computed_of_the_rows_that_ask_alone(tiny: OpenedModel) -> None:
    """Biases in other rows shift no place, and those in their own change nothing told."""
    silent = msgspec.structs.replace(DRAWN, num_top_logprobs=None)
    plain = msgspec.structs.replace(GREEDY, num_top_logprobs=1)
    batch = decode_of(3)
    asked = [
        msgspec.structs.replace(row, params=params)
        for row, params in zip(batch.sampled_rows, (silent, DRAWN, plain), strict=True)
    ]
    runner = gpu_runner(tiny)
    runner._cache._parts.zero_()
    step = runner.launch(replace(batch, sampled_rows=asked))
    assert step.shown is not None
    assert step.shown.token_ids.shape == (2, 1 + 3)
    told = [token.logprobs for token in step.result() if token is not None]
    assert told[0] is None
    assert told[1] is not None
    assert told[2] is not None
    # All rows have the same input.
    assert told[1].top_token_ids[:1] == told[2].top_token_ids
    assert told[1].top_logprobs[:1] == told[2].top_logprobs == [told[2].logprob]


@pytest.mark.parametrize("dtype", [KvCacheDtype.BFLOAT16, KvCacheDtype.FLOAT8], ids=str)
def test_narrow_keys_and_values_are_near_the_exact_ones(
    tiny: OpenedModel, dtype: KvCacheDtype
) -> None:
    hidden = []
    for stored in (dtype, KvCacheDtype.FLOAT32):
        runner = gpu_runner(tiny, kv_cache_dtype=stored)
        runner._cache._parts.zero_()
        batch = FlatBatch([1, 2, 3, 4], range(4), range(16, 20), [Segment(0, 4, 0, [1])], [])
        hidden.append(runner._hidden_states(batch)[1])
    assert torch.cosine_similarity(*hidden).min() > 0.98
    assert not torch.equal(*hidden)


def test_padding_of_a_graphs_size_touches_the_null_block_only(tiny: OpenedModel) -> None:
    """Three in a size of four: everybody else's blocks keep every bit (vllm#43810)."""
    runner = gpu_runner(tiny)
    parts = runner._cache._parts
    parts[:, 1:] = 0
    before = parts.clone()
    runner.execute(decode_of(3))
    changed = {block for _, block, _ in torch.nonzero(parts != before).tolist()}
    assert changed == {0, *range(NUM_BLOCKS - 3, NUM_BLOCKS)}


def test_numbers_that_are_none_fail_their_row_alone(tiny: OpenedModel) -> None:
    runner = gpu_runner(tiny)
    runner._cache._parts[:, 1:] = 0
    runner._cache._parts[:, NUM_BLOCKS - 2] = 0xFF
    first, second, third = runner.execute(decode_of(3))
    assert (first.is_finite, second.is_finite, third.is_finite) == (True, False, True)


def test_eos_is_banned_until_it_may_come(tiny: OpenedModel) -> None:
    chosen = backend.DeviceBackend(tiny, settings().engine_config(), range(64), HERE)
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None)
    free = runner.execute(decode_of(1))[0].token_id
    chosen = backend.DeviceBackend(tiny, settings().engine_config(), [free], HERE)
    banned = replace(decode_of(1), sampled_rows=[SampledRow(0, GREEDY, 4, is_eos_banned=True)])
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None)
    assert runner.execute(banned)[0].token_id != free


def test_blocks_move_out_and_back_in_and_are_poisoned_when_vacated(tiny: OpenedModel) -> None:
    cache = gpu_runner(tiny)._cache
    cache._parts[:, 3] = torch.arange(cache._parts.shape[2], dtype=torch.uint8)
    kept = cache._parts[:, 3].clone()
    cache.apply([CopyOut(3, 1), Vacate(3), CopyIn(1, 7)])
    assert (cache._parts[:, 3] == 0xFF).all()
    assert torch.equal(cache._parts[:, 7], kept)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (3, [1, 2, 3]), (40, [1, 2, 4, 8, 16, 32, 40])], ids=str
)
def test_sizes_of_graphs_end_with_the_largest_batch(most: int, sizes: list[int]) -> None:
    assert decode_graphs.bucket_sizes(most) == sizes


def test_padded_rows_stand_behind_the_real_ones() -> None:
    padded = inputs.padded_decodes(decode_of(2), num_seqs=4, width=3)
    assert padded.slots.tolist()[2:] == [0, 0]
    assert padded.context_lengths.tolist() == [4, 4, 1, 1]
    assert padded.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert padded.block_tables.shape == (4, 3)
    assert not padded.block_tables[2:].any()
    assert not np.any(padded.block_tables[:, 1:])


def test_of_a_prompt_only_what_repetition_looks_at_is_sent_and_once() -> None:
    prompt, completion = [9, 7, 7, 9, 7], [7, 7]
    seen = SeenTokens(array("q", prompt + completion), len(prompt))
    presence = msgspec.structs.replace(GREEDY, presence_penalty=1.0)
    repetition = msgspec.structs.replace(GREEDY, repetition_penalty=2.0)
    batch = decode_of(2)
    rows = [
        SampledRow(row, params, 8, is_eos_banned=False, seen=seen)
        for row, params in enumerate((presence, repetition))
    ]
    penalties = inputs.host_draws(replace(batch, sampled_rows=rows), []).penalties
    assert penalties.prompt.tolist() == [[1, 1], [7, 9]]
    assert penalties.completion.tolist() == [[0, 0, 1, 1], [7, 7, 7, 7]]
