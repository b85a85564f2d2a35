"""What a preempted sequence had computed comes back from host memory, bit for bit."""

import json
from itertools import count
from pathlib import Path

import pytest

from contracts.names import HEADER_REQUEST_ID
from kernels.paged_attention.formats import KvFormat
from replica.engine.backend import choose_backend
from replica.engine.kv_blocks import KvOptions
from replica.engine.messages import CpuBackend, KvCacheDtype, Preempted, Preemption, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import open_model
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.replica_process import ReplicaProcess
from tests.replica.test_backend import FILES
from tests.replica.tiny_llama import VOCAB_SIZE, write_gguf
from tests.replica.workload import check_counters, text_of

NUM_BLOCKS = 17
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def engine_of(
    num_blocks: int,
    num_host_blocks: int,
    *,
    max_num_seqs: int = 4,
    is_prefix_caching: bool = False,
) -> EngineHarness:
    return EngineHarness(
        HashModel(4),
        TOKEN_BYTES,
        [EOS],
        SchedulerLimits(4, max_num_seqs, 16, is_prefix_caching=is_prefix_caching),
        num_blocks,
        num_host_blocks=num_host_blocks,
    )


def test_what_was_computed_is_not_computed_again() -> None:
    engine = engine_of(num_blocks=64, num_host_blocks=8)
    prompt = list(range(1, 20))
    sequence_id = engine.submit(prompt, PARAMS)
    for _ in range(5):
        engine.step()
    engine.preempt(sequence_id)
    report = engine.step()
    assert report is not None
    assert report.num_batched_tokens == 1
    engine.run()
    assert engine.outcomes[sequence_id].text == text_of(reference_completion(prompt, PARAMS))
    assert (engine.stats.num_preemptions, engine.stats.num_swaps) == (1, 1)
    assert report.preempted == [Preempted(sequence_id, Preemption.SWAP, num_blocks=6)]
    check_counters(engine)


def test_who_finds_no_room_computes_again() -> None:
    engine = engine_of(num_blocks=64, num_host_blocks=7)
    prompts = [list(range(1, 20)), list(range(2, 21))]
    ids = engine.submit_together(prompts, PARAMS)
    engine.step()
    engine.step()
    for sequence_id in ids:
        engine.preempt(sequence_id)
    engine.run()
    assert (engine.stats.num_preemptions, engine.stats.num_swaps) == (2, 1)
    for sequence_id, prompt in zip(ids, prompts, strict=True):
        assert engine.outcomes[sequence_id].text == text_of(reference_completion(prompt, PARAMS))


def test_copies_of_an_aborted_sequence_are_given_up() -> None:
    engine = engine_of(num_blocks=64, num_host_blocks=8)
    for _ in range(3):
        sequence_id = engine.submit(list(range(1, 20)), PARAMS)
        engine.step()
        engine.preempt(sequence_id)
        engine.abort(sequence_id)
    assert engine.stats.num_swaps == 3


def test_a_cleared_cache_is_not_refilled_from_copies() -> None:
    engine = engine_of(num_blocks=64, num_host_blocks=8, is_prefix_caching=True)
    prompt = list(range(1, 13))
    sequence_id = engine.submit(prompt, PARAMS)
    engine.step()
    engine.preempt(sequence_id)
    report = engine.clear_cache()
    assert report is not None
    assert report.num_batched_tokens == len(prompt) + 2, "all it knows is computed again"
    engine.run()
    assert engine.stats.num_swaps == 1
    assert engine.outcomes[sequence_id].text == text_of(reference_completion(prompt, PARAMS))
    check_counters(engine)


def test_what_there_are_copies_of_is_neither_queued_nor_looked_up() -> None:
    engine = engine_of(num_blocks=64, num_host_blocks=8, max_num_seqs=1)
    prompt = list(range(1, 20))
    swapped = engine.submit(prompt, PARAMS)
    engine.step()
    engine.step()
    queried = engine.stats.prefix_cache_queries
    assert queried == len(prompt)
    engine.preempt(swapped)
    urgent = engine.submit([1, 2, 3], PARAMS, priority=-1)
    assert engine.stats.queued_prompt_tokens == 1, "its last token, whose successor is unknown"
    while engine.outcomes[urgent].usage is None:
        engine.step()
    engine.step()
    assert engine.stats.queued_prompt_tokens == 0
    assert engine.stats.prefix_cache_queries == queried + 3 + 1
    engine.run()
    check_counters(engine)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (CpuBackend.TORCH, KvCacheDtype.FLOAT32),
        *((CpuBackend.COMPILED, KvCacheDtype(dtype)) for dtype in KvFormat),
    ],
    ids=str,
)
def test_a_swapped_sequence_goes_on_as_if_nothing_had_happened(
    backend: CpuBackend, dtype: KvCacheDtype, tmp_path: Path
) -> None:
    """At a high temperature: logits with other bits would draw other tokens, sooner or later."""
    write_gguf(tmp_path / "tiny.gguf", FILES["bfloat16"][0])
    config = Settings(cpu_backend=backend, num_threads=1, kv_cache_dtype=dtype).engine_config()
    chosen = choose_backend(config, open_model(tmp_path / "tiny.gguf"), [])
    options = KvOptions(num_host_blocks=24, is_poisoned=True)
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None, options)
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    params = SamplingParams(max_tokens=70, temperature=1.5, seed=5, ignore_eos=True)
    prompts = [[1 + (5 * i + j) % 60 for j in range(20)] for i in range(4)]

    engine = EngineHarness(
        runner, names, [], SchedulerLimits(16, 4, 64), NUM_BLOCKS, num_host_blocks=24
    )
    alone = []
    for index, prompt in enumerate(prompts):
        alone.append(engine.submit(prompt, params, f"alone {index}"))
        engine.run()
    assert engine.stats.num_preemptions == 0
    ids = [engine.enqueue(prompt, params, f"salt {i}") for i, prompt in enumerate(prompts)]
    for step in count():
        if engine.step() is None:
            break
        if step % 7 == 0:
            engine.preempt(ids[step % 4])
    assert engine.stats.num_swaps > 5
    for swapped, undisturbed in zip(ids, alone, strict=True):
        assert engine.outcomes[swapped].text == engine.outcomes[undisturbed].text


def test_the_log_says_whose_blocks_were_taken(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    """Four answers of 100 tokens, and room for 160."""
    settings = replica_settings | {"max_model_len": 128, "block_size": 16}
    settings |= {"kv_cache_bytes": 11 * 16 * 2 * 30 * 3 * 64 * 4}
    body = {"prompt": "One", "max_tokens": 100, "n": 4, "ignore_eos": True}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        answer = replica.post("/v1/completions", body, {HEADER_REQUEST_ID: "whose"})
        assert answer.json["usage"]["completion_tokens"] == 400
        lines = [json.loads(line) for line in replica.log.splitlines()]
    preempted = [line for line in lines if line["message"] == "preempted"]
    assert preempted
    assert {(line["request_id"], line["reason"]) for line in preempted} == {("whose", "recompute")}
