"""What nobody may read is poisoned: a stale read shows, and a masked one changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.paged_attention.formats import KvFormat
from replica.engine.backend import choose_backend
from replica.engine.batch import FlatBatch, SampledRow, Segment
from replica.engine.kv_blocks import KvOptions
from replica.engine.kv_operations import Vacate
from replica.engine.launcher import ModelRunner
from replica.engine.messages import CpuBackend, FinishReason, KvCacheDtype, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import open_model
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness
from tests.replica.test_backend import FILES
from tests.replica.tiny_llama import VOCAB_SIZE, write_gguf

BLOCK_SIZE = 16
NUM_BLOCKS = 9  # two sequences of 60 tokens: every block is reused many times
PARAMS = SamplingParams(max_tokens=25, temperature=0.0, ignore_eos=True)
with_all_kinds_of_kv = pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (CpuBackend.TORCH, KvCacheDtype.FLOAT32),
        *((CpuBackend.COMPILED, KvCacheDtype(dtype)) for dtype in KvFormat),
    ],
    ids=str,
)
PROMPTS = [[1 + (7 * i + j) % 60 for j in range(3 + 5 * i)] for i in range(8)]


def runner_of(
    backend: CpuBackend, dtype: KvCacheDtype, folder: Path, *, is_poisoned: bool
) -> ModelRunner:
    write_gguf(folder / "tiny.gguf", FILES["bfloat16"][0])
    config = Settings(
        cpu_backend=backend, kv_cache_dtype=dtype, block_size=BLOCK_SIZE, num_threads=1
    ).engine_config()
    chosen = choose_backend(config, open_model(folder / "tiny.gguf"), [])
    options = KvOptions(is_poisoned=is_poisoned)
    return chosen.load(NUM_BLOCKS, lambda ratio, detail: None, options)


def engine_of(runner: ModelRunner, *, is_prefix_caching: bool) -> EngineHarness:
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(BLOCK_SIZE, 4, 32, is_prefix_caching)
    return EngineHarness(runner, names, [], limits, NUM_BLOCKS)


def answers(engine: EngineHarness) -> list[str]:
    ids = engine.submit_together(PROMPTS, PARAMS)
    engine.run()
    assert {engine.outcomes[i].finish_reason for i in ids} == {FinishReason.LENGTH}
    return [engine.outcomes[i].text for i in ids]


@pytest.mark.parametrize("is_prefix_caching", [True, False], ids=["cached", "not cached"])
@with_all_kinds_of_kv
def test_poison_changes_no_answer(
    backend: CpuBackend, dtype: KvCacheDtype, is_prefix_caching: bool, tmp_path: Path
) -> None:
    """Never-written lanes, unused ends of blocks and freed blocks are all NaN here."""
    plain, poisoned = (
        engine_of(
            runner_of(backend, dtype, tmp_path, is_poisoned=is_poisoned),
            is_prefix_caching=is_prefix_caching,
        )
        for is_poisoned in (False, True)
    )
    assert answers(poisoned) == answers(plain)
    assert poisoned.stats.num_preemptions > 0
    assert answers(poisoned) == answers(plain)


@with_all_kinds_of_kv
def test_stale_read_fails_its_request(
    backend: CpuBackend, dtype: KvCacheDtype, tmp_path: Path
) -> None:
    runner = runner_of(backend, dtype, tmp_path, is_poisoned=True)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    segment = Segment(first_row=0, num_tokens=18, start=0, block_table=(3, 5))
    prompt = FlatBatch([1] * 18, range(18), [*range(48, 64), 80, 81], [segment], [])
    assert runner.execute(prompt) == [None]
    decode = FlatBatch(
        [1], [18], [82], [Segment(0, 1, 18, (3, 5))], [SampledRow(0, params, 19, False)]
    )
    (token,) = runner.execute(decode)
    assert token is not None
    assert token.is_finite
    (stale,) = runner.execute(replace(decode, kv_operations=[Vacate(3)]))
    assert stale is not None
    assert not stale.is_finite
