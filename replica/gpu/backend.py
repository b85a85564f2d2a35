"""A model on a device, from its files to a runner: the cache is sized when all else is there."""

from array import array
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from replica.engine.batch import FlatBatch, SampledRow, SeenTokens, Segment
from replica.engine.kv_blocks import PLAIN, KvOptions
from replica.engine.memory_plan import MemoryPlan
from replica.engine.messages import (
    MAX_TOP_LOGPROBS,
    EngineConfig,
    KvCacheDtype,
    Precision,
    SamplingParams,
)
from replica.errors import ModelUnsupported
from replica.gpu.adapters import DeviceAdapters, stacked_bytes
from replica.gpu.decode_graphs import DecodeGraphs
from replica.gpu.device import Device
from replica.gpu.kv_cache import DeviceKvCache, block_bytes
from replica.gpu.memory import DeviceDemand, plan_device_memory
from replica.gpu.model import DeviceLlama
from replica.gpu.runner import DeviceRunner
from replica.gpu.warm_up import warm_up_batches
from replica.gpu.weights import WeightLoader
from replica.model.damage import blaming
from replica.model.loader import OpenedModel

_LEAST_BLOCKS: Final = 2  # the null block, and one that all rows of the worst step write to
_PRECISIONS: Final = (Precision.EXACT, Precision.FLOAT8)
_KV_DTYPES: Final = {
    KvCacheDtype.FLOAT32: None,  # the default: as everything else is
    KvCacheDtype.BFLOAT16: torch.bfloat16,
    KvCacheDtype.FLOAT8: torch.float8_e4m3fn,
}


class DeviceBackend:
    """A Backend."""

    def __init__(
        self,
        opened: OpenedModel,
        config: EngineConfig,
        eos_token_ids: Collection[int],
        device: Device,
    ) -> None:
        """Raises ModelError, also for what only the compiled CPU step can do."""
        if config.kv_cache_dtype not in _KV_DTYPES or config.precision not in _PRECISIONS:
            raise ModelUnsupported(
                f"precision {config.precision} with {config.kv_cache_dtype} keys and values "
                "is not computed on a GPU"
            )
        self._opened = opened
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._dtype = device.default_dtype
        self._kv_dtype = _KV_DTYPES[config.kv_cache_dtype] or self._dtype
        with blaming(opened.path):
            self._loader = WeightLoader(
                opened.source, opened.config, device, self._dtype,
                is_float8=config.precision is Precision.FLOAT8,
                max_rows=max(config.max_num_batched_tokens, config.max_num_seqs),
            )  # fmt: skip
        self._model: DeviceLlama | None = None

    @property
    def description(self) -> str:
        return (
            f"Triton kernels on {self._device.description}, {self._dtype} weights, "
            f"{self._kv_dtype} keys and values"
        )

    @property
    def kv_dtype(self) -> str:
        stored = str(self._kv_dtype).removeprefix("torch.")
        computed = str(self._dtype).removeprefix("torch.")
        if self._config.precision is not Precision.EXACT:
            computed = f"{computed}-{self._config.precision}"
        return f"{stored}-{computed}"

    @property
    def weights_bytes(self) -> int:
        adapters = stacked_bytes(self._opened.adapters, self._opened.config, self._dtype)
        return self._loader.size_bytes + adapters

    def plan(self, report: Callable[[float, str], None]) -> MemoryPlan:
        """Loads the weights, then measures what the worst step and the graphs take."""
        model, config = self._loaded(report), self._opened.config
        report(0.5, "measuring a step's memory")
        activations, graphs = self._measured(model)
        demand = DeviceDemand(
            free=self._device.free_bytes(),
            activations=activations,
            graphs=graphs,
            block=block_bytes(config, self._config.block_size, self._kv_dtype),
        )
        return plan_device_memory(self._config, config, demand)

    def _measured(self, model: DeviceLlama) -> tuple[int, int]:
        """Bytes of the worst step, and of all graphs, over the least cache; all given back."""
        runner, graphs = self._runner(model, _LEAST_BLOCKS, max_context=self._most_context)
        activations = self._device.peak_bytes(lambda: self._worst_step(runner))
        free = self._device.free_bytes()
        graphs.capture()
        return activations, max(0, free - self._device.free_bytes())

    def load(
        self, num_blocks: int, report: Callable[[float, str], None], options: KvOptions = PLAIN
    ) -> DeviceRunner:
        model = self._loaded(report)
        max_context = min(self._most_context, num_blocks * self._config.block_size)
        runner, graphs = self._runner(model, num_blocks, options, max_context=max_context)
        report(0.5, "capturing decode steps")
        graphs.capture()
        report(0.9, "compiling kernels")
        for batch in warm_up_batches(self._config.max_num_batched_tokens):
            self._device.warm_up(partial(runner.execute, batch))
        return runner

    def _loaded(self, report: Callable[[float, str], None]) -> DeviceLlama:
        if self._model is None:
            with blaming(self._opened.path):
                weights = self._loader.load(lambda ratio: report(ratio / 2, "loading weights"))
            opened = self._opened
            adapters = DeviceAdapters(opened.adapters, opened.config, self._device, self._dtype)
            self._model = DeviceLlama(opened.config, weights, adapters)
        return self._model

    @property
    def _most_context(self) -> int:
        asked = self._config.max_model_len
        return self._opened.config.max_positions if asked is None else asked

    def _runner(
        self,
        model: DeviceLlama,
        num_blocks: int,
        options: KvOptions = PLAIN,
        *,
        max_context: int,
    ) -> tuple[DeviceRunner, DecodeGraphs]:
        config = self._config
        cache = DeviceKvCache(
            self._device, model.config, num_blocks=num_blocks, block_size=config.block_size,
            dtype=self._kv_dtype, options=options,
        )  # fmt: skip
        graphs = DecodeGraphs(
            self._device, model, cache, max_num_seqs=config.max_num_seqs, max_context=max_context,
            block_size=config.block_size,
        )  # fmt: skip
        runner = DeviceRunner(
            self._device, model, cache, graphs, eos_token_ids=self._eos_token_ids,
            num_ahead=int(config.is_async_scheduling),
        )  # fmt: skip
        return runner, graphs

    def _worst_step(self, runner: DeviceRunner) -> None:
        """As many rows as there may be, and as many of them drawn and told, nothing left out.

        Each has seen a prompt of as many kinds of tokens as it can have.
        """
        config = self._config
        num_rows, num_seqs = config.max_num_batched_tokens, config.max_num_seqs
        starts = np.linspace(0, num_rows, num_seqs + 1).astype(int).tolist()
        params = SamplingParams(
            max_tokens=1, temperature=1.0, top_p=0.5, num_top_logprobs=MAX_TOP_LOGPROBS,
            presence_penalty=1.0, repetition_penalty=2.0,
        )  # fmt: skip
        num_seen = min(self._opened.config.vocab_size, self._most_context - 1)
        seen = SeenTokens(array("q", range(num_seen)), num_seen)
        table = [1] * -(-num_rows // config.block_size)
        runner.execute(
            FlatBatch(
                token_ids=[0] * num_rows,
                positions=[0] * num_rows,
                slots=[config.block_size] * num_rows,
                segments=[Segment(start, end - start, 0, table) for start, end in pairwise(starts)],
                sampled_rows=[
                    SampledRow(end - 1, params, 1, is_eos_banned=False, seen=seen)
                    for end in starts[1:]
                ],
            )
        )
