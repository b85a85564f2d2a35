"""The GPU's path, on a CPU under Triton's interpreter: the same tokens as plain torch gives."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from replica.engine.backend import choose_backend
from replica.engine.batch import FlatBatch, SampledRow, Segment
from replica.engine.kv_blocks import KvOptions
from replica.engine.kv_operations import CopyIn, CopyOut, Vacate
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher
from replica.engine.messages import (
    MAX_TOP_LOGPROBS,
    CpuBackend,
    Device,
    KvCacheDtype,
    Precision,
    Preemption,
    SamplingParams,
)
from replica.engine.scheduler import SchedulerLimits
from replica.errors import ModelUnsupported
from replica.model.config import LlamaConfig
from replica.model.loader import OpenedModel, open_model
from replica.settings import Settings
from tests.kernels.triton_runs import numbers, poisoned_memory
from tests.replica.engine_harness import EngineHarness, Outcome
from tests.replica.tiny_llama import SHAPES, VOCAB_SIZE, Kind, write_gguf

backend = pytest.importorskip("replica.gpu.backend")
decode_graphs = pytest.importorskip("replica.gpu.decode_graphs")
device = pytest.importorskip("replica.gpu.device")
devices = pytest.importorskip("kernels.devices")
inputs = pytest.importorskip("replica.gpu.inputs")
kv_cache = pytest.importorskip("replica.gpu.kv_cache")
memory = pytest.importorskip("replica.gpu.memory")

BLOCK_SIZE = 16
NUM_BLOCKS = 24
PROMPTS = [[5], [1, 2, 3], list(range(1, 19))]
CPU = device.CpuDevice(memory_bytes=1 << 30)


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, dict.fromkeys((*SHAPES, "token_embd"), Kind.F16))
    return open_model(path)


def settings(**changes: object) -> Settings:
    sizes = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_num_batched_tokens": 12}
    return Settings(**{"num_threads": 1} | sizes | changes)


def gpu_runner(tiny: OpenedModel, **changes: object) -> "backend.DeviceRunner":
    chosen = backend.DeviceBackend(tiny, settings(**changes).engine_config(), [], CPU)
    return chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(2, is_poisoned=True))


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


GREEDY = SamplingParams(max_tokens=3, temperature=0.0)
DRAWN = SamplingParams(
    max_tokens=3,
    temperature=1.3,
    top_k=20,
    top_p=0.9,
    seed=7,
    num_top_logprobs=3,
    logit_bias={7: 1.5, 9: -100.0},
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
        hidden.append(runner._hidden_states(batch))
    assert torch.cosine_similarity(*hidden).min() > 0.98
    assert not torch.equal(*hidden)


def test_float8_is_taken_where_it_is_faster_and_never_measured_while_serving(
    tiny: OpenedModel,
) -> None:
    """Once for all layers, at each size of batch."""
    place, sizes, num_ways = MeasuringDevice(memory_bytes=1 << 30), 1, 2
    config = settings(precision=Precision.FLOAT8, max_num_seqs=1, max_num_batched_tokens=1)
    chosen = backend.DeviceBackend(tiny, config.engine_config(), [], place)
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None)
    num_measured = len(set(matrix_shapes(tiny.config))) * sizes * num_ways
    assert place.num_measured == num_measured
    exact = gpu_runner(tiny)
    exact._cache._parts.zero_()
    hidden = [r._hidden_states(decode_of(1)) for r in (runner, exact)]
    assert torch.cosine_similarity(*hidden).min() > 0.95
    for layers in zip(*(r._model._weights.layers for r in (runner, exact)), strict=True):
        for name, (in_features, _) in zip(MATRICES, matrix_shapes(tiny.config), strict=True):
            x = numbers(1, in_features)
            products = [getattr(layer, name)(x) for layer in layers]
            assert torch.equal(*products) == (name in ("qkv", "gate_up")), name
            assert torch.cosine_similarity(*products).min() > 0.99, name
    assert place.num_measured == num_measured
    assert chosen.weights_bytes * 4 == exact_bytes(tiny) * 5


class MeasuringDevice(device.CpuDevice):
    """Counts, and finds the first way faster for every second shape, else the second way."""

    num_measured = 0

    def measure_s(self, work: Callable[[], object]) -> float:
        shape, way = divmod(self.num_measured, 2)
        self.num_measured += 1
        return float(way != shape % 2)


MATRICES = ("qkv", "output", "gate_up", "down")


def matrix_shapes(config: LlamaConfig) -> Iterator[tuple[int, int]]:
    """(in, out) of a layer's that have no bias."""
    hidden, q_size = config.hidden_size, config.num_heads * config.head_dim
    yield hidden, q_size + 2 * config.num_kv_heads * config.head_dim
    yield q_size, hidden
    yield hidden, 2 * config.intermediate_size
    yield config.intermediate_size, hidden


def test_the_name_of_keys_and_values_says_what_they_are(tiny: OpenedModel) -> None:
    """The default is no float32 where the device's default is another."""
    names = {}
    for default in (torch.float32, torch.bfloat16):
        for stored in (KvCacheDtype.FLOAT32, KvCacheDtype.FLOAT8):
            place = device.CpuDevice(memory_bytes=1 << 30)
            place.default_dtype = default
            config = settings(kv_cache_dtype=stored).engine_config()
            names[default, stored] = backend.DeviceBackend(tiny, config, [], place).kv_dtype
    assert names[torch.bfloat16, KvCacheDtype.FLOAT32] == "bfloat16-bfloat16"
    assert names[torch.float32, KvCacheDtype.FLOAT32] == "float32-float32"
    assert names[torch.bfloat16, KvCacheDtype.FLOAT8] == "float8_e4m3fn-bfloat16"
    assert len(set(names.values())) == len(names)
    on_cpu = choose_backend(settings(cpu_backend=CpuBackend.TORCH).engine_config(), tiny, [])
    assert on_cpu.kv_dtype == "float32"


@pytest.mark.parametrize(
    ("there", "named", "obstacle"),
    [
        ({"gcc"}, None, None),
        ({"clang"}, None, None),
        ({"mine"}, "mine", None),
        (set(), None, "no gcc and no clang"),
        ({"gcc"}, "mine", "no mine"),
    ],
    ids=["gcc", "clang", "named", "none", "named-one-is-missing"],
)
def test_without_a_c_compiler_a_gpu_is_refused(
    there: set[str], named: str | None, obstacle: str | None
) -> None:
    def find(name: str) -> str | None:
        return name if name in there else None

    result = devices.compiler_obstacle(find, named)
    assert result is None if obstacle is None else obstacle in str(result)


def exact_bytes(tiny: OpenedModel) -> int:
    return int(backend.DeviceBackend(tiny, settings().engine_config(), [], CPU).weights_bytes)


def decode_of(num_seqs: int, *, token: int = 5) -> FlatBatch:
    """Each sequence at position 3 of its own block, the last there are."""
    blocks = [NUM_BLOCKS - 1 - i for i in range(num_seqs)]
    return FlatBatch(
        token_ids=[token] * num_seqs,
        positions=[3] * num_seqs,
        slots=[block * BLOCK_SIZE + 3 for block in blocks],
        segments=[Segment(i, 1, 3, [block]) for i, block in enumerate(blocks)],
        sampled_rows=[SampledRow(i, GREEDY, 4, is_eos_banned=False) for i in range(num_seqs)],
    )


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
    chosen = backend.DeviceBackend(tiny, settings().engine_config(), range(64), CPU)
    runner = chosen.load(NUM_BLOCKS, lambda ratio, detail: None)
    free = runner.execute(decode_of(1))[0].token_id
    chosen = backend.DeviceBackend(tiny, settings().engine_config(), [free], CPU)
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


def test_memory_is_planned_from_what_is_measured(tiny: OpenedModel) -> None:
    chosen = backend.DeviceBackend(
        tiny, settings(max_model_len=64).engine_config(), [], device.CpuDevice(1 << 20)
    )
    plan = chosen.plan(lambda ratio, detail: None)
    per_block = kv_cache.block_bytes(tiny.config, BLOCK_SIZE, torch.float32)
    assert plan.num_blocks == int((1 << 20) * 0.95) // per_block
    assert plan.max_model_len == 64


def test_the_worst_step_tells_logprobs_of_all_rows(tiny: OpenedModel) -> None:
    place = PeakDevice(memory_bytes=1 << 20)
    config = settings(max_num_seqs=3).engine_config()
    backend.DeviceBackend(tiny, config, [], place).plan(lambda ratio, detail: None)
    assert (3, 1 + MAX_TOP_LOGPROBS) in place.downloaded_at_peak


class PeakDevice(device.CpuDevice):
    """Knows what the measured work brings to the host."""

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(memory_bytes)
        self.downloaded_at_peak: list[tuple[int, ...]] = []
        self._is_measuring = False

    def peak_bytes(self, work: Callable[[], None]) -> int:
        self._is_measuring = True
        work()
        self._is_measuring = False
        return 0

    def download(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_measuring:
            self.downloaded_at_peak.append(tuple(x.shape))
        return x.clone()


DEMAND = {"free": 1000 << 20, "activations": 100 << 20, "graphs": 50 << 20, "block": 1 << 20}


def test_all_that_is_left_holds_keys_and_values(tiny: OpenedModel) -> None:
    demand = memory.DeviceDemand(**DEMAND)
    swapping = settings(preemption=Preemption.SWAP, swap_bytes=5 << 20).engine_config()
    plan = memory.plan_device_memory(swapping, tiny.config, demand)
    assert (plan.num_blocks, plan.num_host_blocks) == (950 - 150, 5)
    assert plan.max_model_len == tiny.config.max_positions


def test_what_does_not_fit_is_refused_with_its_numbers(tiny: OpenedModel) -> None:
    demand = memory.DeviceDemand(**DEMAND | {"free": 170 << 20})
    config = settings(max_model_len=200).engine_config()
    with pytest.raises(ModelUnsupported, match=r"steps take 100 MiB and graphs 50 MiB.*holds 160"):
        memory.plan_device_memory(config, tiny.config, demand)
    with pytest.raises(ModelUnsupported, match="a smaller model would"):
        memory.plan_device_memory(
            config, tiny.config, memory.DeviceDemand(**DEMAND | {"free": 10 << 20})
        )


def test_what_no_gpu_computes_is_refused(tiny: OpenedModel) -> None:
    for asked in ({"precision": Precision.INT8}, {"kv_cache_dtype": KvCacheDtype.INT8}):
        with pytest.raises(ModelUnsupported, match="not computed on a GPU"):
            backend.DeviceBackend(tiny, settings(**asked).engine_config(), [], CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_was_asked_for_must_be_there(tiny: OpenedModel) -> None:
    with pytest.raises(ModelUnsupported, match="device cuda was asked for"):
        choose_backend(settings(device=Device.CUDA).engine_config(), tiny, [])
