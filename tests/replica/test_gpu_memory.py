"""A GPU's memory: what is measured, what is left, and what does not fit."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy.typing as npt
import pytest
import torch

from replica.engine.messages import (
    MAX_TOP_LOGPROBS,
    Preemption,
)
from replica.errors import ModelUnsupported
from replica.model.loader import OpenedModel
from tests.kernels.triton_runs import poisoned_memory
from tests.replica.gpu_runs import (
    BLOCK_SIZE,
    backend,
    device,
    settings,
)

kv_cache = pytest.importorskip("replica.gpu.kv_cache")
memory = pytest.importorskip("replica.gpu.memory")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


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


def test_in_the_worst_step_each_row_has_seen_all_that_a_prompt_can_hold(tiny: OpenedModel) -> None:
    place = PeakDevice(memory_bytes=1 << 20)
    config = settings(max_num_seqs=3, max_model_len=50).engine_config()
    backend.DeviceBackend(tiny, config, [], place).plan(lambda ratio, detail: None)
    assert tiny.config.vocab_size > 49
    assert (2, 3 * 49) in place.uploaded_at_peak


class PeakDevice(device.CpuDevice):
    """Knows what the measured work brings to the device, and to the host."""

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(memory_bytes)
        self.downloaded_at_peak: list[tuple[int, ...]] = []
        self.uploaded_at_peak: list[tuple[int, ...]] = []
        self._is_measuring = False

    def peak_bytes(self, work: Callable[[], None]) -> int:
        self._is_measuring = True
        work()
        self._is_measuring = False
        return 0

    def upload(self, values: npt.NDArray[Any]) -> torch.Tensor:
        if self._is_measuring:
            self.uploaded_at_peak.append(values.shape)
        uploaded: torch.Tensor = super().upload(values)
        return uploaded

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
