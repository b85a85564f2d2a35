"""Steps in plain torch: every model, any machine."""

from collections.abc import Callable, Collection
from typing import Final

import torch

from replica.engine.cores import num_usable_cores
from replica.engine.free_memory import available_bytes
from replica.engine.kv_blocks import PLAIN, KvOptions
from replica.engine.memory_plan import MemoryPlan, plan_memory
from replica.engine.messages import EngineConfig
from replica.engine.runner import TorchRunner
from replica.model.adapted_rows import TorchAdapters
from replica.model.adapters import num_adapter_weights
from replica.model.loader import OpenedModel

_LOADING: Final = "loading weights"


class TorchBackend:
    """A Backend."""

    def __init__(
        self,
        opened: OpenedModel,
        config: EngineConfig,
        eos_token_ids: Collection[int],
        reason: str,
    ) -> None:
        # Not torch's own default: it knows of no quota.
        torch.set_num_threads(
            num_usable_cores() if config.num_threads is None else config.num_threads
        )
        self.description = f"torch, {torch.get_num_threads()} threads: {reason}"
        self._opened = opened
        self._config = config
        self._eos_token_ids = eos_token_ids

    @property
    def kv_dtype(self) -> str:
        return self._config.kv_name

    @property
    def weights_bytes(self) -> int:
        adapters = num_adapter_weights(self._opened.adapters, self._opened.config)
        return self._opened.weights_bytes + 4 * adapters

    def plan(self, _report: Callable[[float, str], None]) -> MemoryPlan:
        """Before the weights are read."""
        return plan_memory(
            self._config,
            self._opened.config,
            weights_bytes=self.weights_bytes,
            available_bytes=available_bytes(self._config.memory_bytes),
        )

    def load(
        self, num_blocks: int, report: Callable[[float, str], None], options: KvOptions = PLAIN
    ) -> TorchRunner:
        return TorchRunner(
            self._opened.load(lambda ratio: report(ratio, _LOADING)),
            TorchAdapters(self._opened.adapters, self._opened.config),
            num_blocks=num_blocks,
            block_size=self._config.block_size,
            eos_token_ids=self._eos_token_ids,
            options=options,
        )
