"""What computes the steps, why, and that it does not matter for the tokens."""

import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from contracts.replica_api import Phase, ReplicaState
from kernels.linear.formats import INTEGER_FORMATS, ActivationFormat, WeightFormat
from kernels.linear.reference import unpack
from kernels.paged_attention.formats import KvFormat
from replica.engine.backend import TORCH_COSTS, choose_backend
from replica.engine.cores import num_usable_cores
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ThreadLauncher
from replica.engine.messages import (
    CpuBackend,
    KvCacheDtype,
    Precision,
    SamplingParams,
)
from replica.engine.scheduler import SchedulerLimits
from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.loader import OpenedModel, open_model
from replica.model.packed_weights import PackedModel
from replica.model.tensor_source import TensorSource
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness, NewLauncher
from tests.replica.replica_process import ReplicaProcess
from tests.replica.tiny_llama import SHAPES, VOCAB_SIZE, Kind, write_gguf

BLOCK_SIZE = 16
NUM_BLOCKS = 64
PROMPTS = [[5], [1, 2, 3], list(range(1, 40)), [7] * 8, list(range(63, 3, -1))]
Q4_0 = dict.fromkeys(SHAPES, Kind.Q4_0)
# Each with what its layers are packed as.
FILES = {
    "own output matrix": (
        Q4_0 | {"token_embd": Kind.Q8_0, "output": Kind.F16},
        WeightFormat.Q4_0,
    ),
    "layers of several formats": (
        Q4_0 | {"token_embd": Kind.Q8_0, "ffn_down": Kind.Q8_0, "attn_v": Kind.F16},
        WeightFormat.FLOAT32,
    ),
    "bfloat16": (
        dict.fromkeys((*SHAPES, "token_embd"), Kind.BF16),
        WeightFormat.BFLOAT16,
    ),
}


@pytest.fixture(params=FILES, ids=str)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[OpenedModel, WeightFormat]:
    kinds, layer_format = FILES[request.param]
    write_gguf(tmp_path / "tiny.gguf", kinds)
    return open_model(tmp_path / "tiny.gguf"), layer_format


@pytest.fixture
def tiny(tmp_path: Path) -> OpenedModel:
    write_gguf(tmp_path / "tiny.gguf", FILES["own output matrix"][0])
    return open_model(tmp_path / "tiny.gguf")


def engine_of(
    opened: OpenedModel, cpu_backend: CpuBackend, new_launcher: NewLauncher = InlineLauncher
) -> EngineHarness:
    config = Settings(cpu_backend=cpu_backend, block_size=BLOCK_SIZE, num_threads=2).engine_config()
    backend = choose_backend(config, opened, [])
    runner = backend.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(is_poisoned=True))
    names = [b"%d " % i for i in range(VOCAB_SIZE)]
    limits = SchedulerLimits(BLOCK_SIZE, 8, 128)
    return EngineHarness(runner, names, [], limits, NUM_BLOCKS, new_launcher=new_launcher)


def texts(engine: EngineHarness, params: SamplingParams) -> list[str]:
    ids = engine.submit_together(PROMPTS, params)
    engine.run()
    return [engine.outcomes[i].text for i in ids]


def test_both_backends_give_the_same_tokens(opened: tuple[OpenedModel, WeightFormat]) -> None:
    model, layer_format = opened
    assert PackedModel(model.source, model.config).layer_format is layer_format
    greedy = SamplingParams(max_tokens=16, temperature=0.0)
    compiled = texts(engine_of(model, CpuBackend.COMPILED), greedy)
    assert compiled == texts(engine_of(model, CpuBackend.TORCH), greedy)
    assert len(set(" ".join(compiled).split())) > 10, "the model says too little"


@pytest.mark.parametrize("cpu_backend", [CpuBackend.TORCH, CpuBackend.COMPILED], ids=str)
def test_launching_ahead_in_a_thread_changes_no_token(
    tiny: OpenedModel, cpu_backend: CpuBackend
) -> None:
    """Drawn, from seeds: logits with other bits would draw other tokens, sooner or later."""
    drawn = SamplingParams(max_tokens=40, temperature=1.5, seed=7)
    ahead = texts(engine_of(tiny, cpu_backend, ThreadLauncher), drawn)
    assert ahead == texts(engine_of(tiny, cpu_backend), drawn)


@pytest.mark.parametrize("precision", [Precision.EXACT, Precision.INT8, Precision.BFLOAT16])
def test_packed_weights_take_what_was_announced(
    opened: tuple[OpenedModel, WeightFormat], precision: Precision
) -> None:
    packed = PackedModel(opened[0].source, opened[0].config, precision)
    weights = packed.load(lambda ratio: None)
    matrices = {id(m): m for m in (weights.embedding, weights.lm_head)}
    for layer in weights.layers:
        matrices |= {id(m): m for m in (layer.qkv, layer.output, layer.gate_up, layer.down)}
    assert packed.size_bytes == sum(m.storage.nbytes for m in matrices.values())


def test_rounded_weights_are_near_the_shipped_ones(tiny: OpenedModel) -> None:
    shipped, int8, per_channel, bfloat16 = (
        unpack(PackedModel(tiny.source, tiny.config, p).load(lambda ratio: None).layers[0].down)
        for p in (
            Precision.EXACT, Precision.INT8, Precision.INT8_PER_CHANNEL, Precision.BFLOAT16
        )
    )  # fmt: skip
    largest = np.abs(shipped).max()
    steps = np.abs(shipped).max(1) / 127
    assert (np.abs(per_channel - shipped).max(1) <= 0.6 * steps).all()
    codes = per_channel / steps[:, None]
    assert np.abs(codes - np.rint(codes)).max() < 0.1, "one scale for a whole output"
    assert np.abs(int8 - shipped).max() <= 1.2 * largest / 254  # scales are float16
    assert np.abs(bfloat16 - shipped).max() <= largest / 256


def test_what_only_the_compiled_step_can_do_is_refused_elsewhere(tiny: OpenedModel) -> None:
    asked = {"precision": Precision.FAST, "kv_cache_dtype": KvCacheDtype.INT8}
    config = Settings(cpu_backend=CpuBackend.TORCH, **asked).engine_config()
    with pytest.raises(ModelUnsupported, match=r"fast with int8 keys .* needs the compiled"):
        choose_backend(config, tiny, [])


def test_fast_keeps_shipped_integers_and_rounds_floats(
    opened: tuple[OpenedModel, WeightFormat],
) -> None:
    model, shipped = opened
    packed = PackedModel(model.source, model.config, Precision.FAST)
    assert packed.activation_format is ActivationFormat.INT8
    is_integer = shipped in INTEGER_FORMATS
    assert packed.layer_format is (shipped if is_integer else WeightFormat.Q8_0)


def test_company_changes_no_draw_of_the_compiled_step(tiny: OpenedModel) -> None:
    """Logits with other bits would give other tokens, sooner or later."""
    params = SamplingParams(max_tokens=60, temperature=1.5, seed=3)
    engine = engine_of(tiny, CpuBackend.COMPILED)
    together = texts(engine, params)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        alone = engine.submit(prompt, params, cache_salt="alone")
        engine.run()
        assert engine.outcomes[alone].text == expected


@pytest.mark.parametrize(
    ("model", "block_size", "reason"),
    [
        ({"has_qkv_bias": True}, 16, "biases"),
        ({"has_qk_norm": True}, 16, "norms on their heads"),
        ({"intermediate_size": 100}, 16, "intermediate size: expected a multiple of 32, got 100"),
        ({"head_dim": 34}, 16, "head"),
        ({}, 12, "block size 12"),
    ],
    ids=str,
)
def test_torch_runs_what_is_not_compiled_and_says_why(
    tiny: OpenedModel, model: dict[str, object], block_size: int, reason: str
) -> None:
    other = replace(tiny, config=replace(tiny.config, **model))
    settings = Settings(block_size=block_size, max_num_batched_tokens=2048)
    backend = choose_backend(settings.engine_config(), other, [])
    assert re.fullmatch(rf"torch, \d+ threads: .*{reason}.*; {TORCH_COSTS}", backend.description)
    wanted = Settings(block_size=block_size, cpu_backend=CpuBackend.COMPILED)
    with pytest.raises(ModelUnsupported, match=reason):
        choose_backend(wanted.engine_config(), other, [])


def test_torch_is_used_when_asked_for(tiny: OpenedModel) -> None:
    config = Settings(cpu_backend=CpuBackend.TORCH).engine_config()
    assert "torch" in choose_backend(config, tiny, []).description


def test_torch_takes_the_cores_that_quotas_leave(tiny: OpenedModel) -> None:
    for asked, expected in ((1, 1), (None, num_usable_cores())):
        config = Settings(cpu_backend=CpuBackend.TORCH, num_threads=asked).engine_config()
        assert f"torch, {expected} threads" in choose_backend(config, tiny, []).description


@pytest.mark.parametrize("dtype", list(KvFormat), ids=str)
@pytest.mark.parametrize("head_dim", [1, 64, 96])
def test_planned_are_the_bytes_that_the_kernels_take(dtype: KvFormat, head_dim: int) -> None:
    assert KvCacheDtype(dtype).bytes_per_head(head_dim) == dtype.head_bytes(head_dim)


@dataclass(frozen=True, slots=True)
class OneIsNoNumber:
    """A TensorSource."""

    source: TensorSource

    def names(self) -> Collection[str]:
        return self.source.names()

    def load(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self.source.load(name)
        if name == "model.layers.0.mlp.down_proj.weight":
            tensor[0, 0] = np.nan
        return tensor

    def stored_format(self, name: str) -> str:
        return self.source.stored_format(name)

    def load_stored(self, name: str) -> npt.NDArray[np.generic]:
        return self.source.load_stored(name)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.BFLOAT16])
def test_weights_that_cannot_be_rounded_are_blamed_on_their_file(
    tiny: OpenedModel, precision: Precision
) -> None:
    damaged = replace(tiny, source=OneIsNoNumber(tiny.source))
    backend = choose_backend(Settings(precision=precision).engine_config(), damaged, [])
    with pytest.raises(ModelInvalid, match=r"tiny\.gguf: .*not finite"):
        backend.load(NUM_BLOCKS, lambda ratio, detail: None)


def test_misshapen_tensors_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, FILES["bfloat16"][0])
    opened = open_model(path)
    wider = replace(opened, config=replace(opened.config, intermediate_size=128))
    backend = choose_backend(Settings().engine_config(), wider, [])
    with pytest.raises(ModelInvalid, match=r"mlp\.gate_proj\.weight: expected 128 rows"):
        backend.load(NUM_BLOCKS, lambda ratio, detail: None)


def test_a_replica_compiles_in_sight_and_without_a_place_to_keep_it(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    """The folder cannot be made: a file is in its way."""
    (tmp_path / "file").touch()
    settings = replica_settings | {"compile_cache_dir": tmp_path / "file" / "kernels"}
    settings |= {"cpu_backend": "compiled"}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        states = [msgspec.convert(s, ReplicaState) for s in replica.wait_ready()]
        compiling = [s.progress_ratio for s in states if s.detail.startswith("compiling")]
        assert len(compiling) > 2
        assert compiling == sorted(compiling)
        assert compiling[-1] <= 0.99
        assert states[-1].phase is Phase.READY
        assert re.fullmatch(r"compiled kernels, \d+ threads: \w+, .*q4_1", states[-1].detail)
        assert states[-1].detail in replica.log
        assert "compiled kernels cannot be kept" in replica.log
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        assert "Paris" in replica.post("/v1/completions", body).json["choices"][0]["text"]


def test_the_compiled_step_needs_no_torch() -> None:
    """It would cost 300 MB in each engine, and seconds at each start."""
    modules = "replica.engine.process, replica.engine.worker, replica.engine.compiled_backend"
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
