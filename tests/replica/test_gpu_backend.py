"""How a model comes onto a GPU: in which numbers, and what is refused."""

from collections.abc import Callable, Iterator
from operator import attrgetter

import pytest
import torch

from replica.engine.backend import choose_backend
from replica.engine.messages import (
    CpuBackend,
    Device,
    KvCacheDtype,
    Precision,
)
from replica.errors import ModelUnsupported
from replica.model.config import LlamaConfig
from replica.model.loader import OpenedModel
from tests.kernels.triton_runs import numbers, poisoned_memory
from tests.replica.gpu_runs import (
    CPU,
    NUM_BLOCKS,
    backend,
    decode_of,
    device,
    gpu_runner,
    settings,
)

devices = pytest.importorskip("kernels.devices")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


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
    exact = gpu_runner(tiny, CPU)
    exact._cache._parts.zero_()
    hidden = [r._hidden_states(decode_of(1))[1] for r in (runner, exact)]
    assert torch.cosine_similarity(*hidden).min() > 0.95
    for layers in zip(*(r._model._weights.layers for r in (runner, exact)), strict=True):
        for name, (in_features, _) in zip(MATRICES, matrix_shapes(tiny.config), strict=True):
            x = numbers(1, in_features).cpu()
            products = [attrgetter(name)(layer)(x) for layer in layers]
            assert torch.equal(*products) == (name in ("qkv", "feed_forward.gate_up")), name
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


MATRICES = ("qkv", "output", "feed_forward.gate_up", "feed_forward.down")


def matrix_shapes(config: LlamaConfig) -> Iterator[tuple[int, int]]:
    """(in, out) of a layer's that have no bias."""
    hidden, q_size = config.hidden_size, config.num_heads * config.head_dim
    yield hidden, q_size + 2 * config.num_kv_heads * config.head_dim
    yield q_size, hidden
    yield hidden, 2 * config.intermediate_size
    yield config.intermediate_size, hidden


def exact_bytes(tiny: OpenedModel) -> int:
    return int(backend.DeviceBackend(tiny, settings().engine_config(), [], CPU).weights_bytes)


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


def test_what_no_gpu_computes_is_refused(tiny: OpenedModel) -> None:
    for asked in ({"precision": Precision.INT8}, {"kv_cache_dtype": KvCacheDtype.INT8}):
        with pytest.raises(ModelUnsupported, match="not computed on a GPU"):
            backend.DeviceBackend(tiny, settings(**asked).engine_config(), [], CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_was_asked_for_must_be_there(tiny: OpenedModel) -> None:
    with pytest.raises(ModelUnsupported, match="device cuda was asked for"):
        choose_backend(settings(device=Device.CUDA).engine_config(), tiny, [])
