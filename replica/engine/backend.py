"""What computes the steps: torch, which runs every model, or the compiled step, which is faster.

Chosen before any weight is read, because the two keep weights in memory differently.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

import torch

from replica.engine.kv_blocks import PLAIN, KvOptions
from replica.engine.launcher import ModelRunner
from replica.engine.messages import CpuBackend, EngineConfig
from replica.engine.runner import TorchRunner
from replica.errors import ModelUnsupported
from replica.model.loader import OpenedModel

ReportProgress = Callable[[float, str], None]  # 0 to 1, and what is being done

_LOADING: Final = "loading weights"


class Backend(Protocol):
    @property
    def description(self) -> str:
        """Which it is, and why: one line for people."""
        ...

    @property
    def weights_bytes(self) -> int:
        """In memory."""
        ...

    def load(
        self, num_blocks: int, report: ReportProgress, options: KvOptions = PLAIN
    ) -> ModelRunner:
        """Raises ModelError."""
        ...


class TorchBackend:
    """A Backend."""

    def __init__(
        self,
        opened: OpenedModel,
        *,
        block_size: int,
        eos_token_ids: Collection[int],
        reason: str,
    ) -> None:
        self.description = f"torch, {torch.get_num_threads()} threads: {reason}"
        self._opened = opened
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids

    @property
    def weights_bytes(self) -> int:
        return self._opened.weights_bytes

    def load(
        self, num_blocks: int, report: ReportProgress, options: KvOptions = PLAIN
    ) -> TorchRunner:
        return TorchRunner(
            self._opened.load(lambda ratio: report(ratio, _LOADING)),
            num_blocks=num_blocks,
            block_size=self._block_size,
            eos_token_ids=self._eos_token_ids,
            options=options,
        )


def choose_backend(
    config: EngineConfig, opened: OpenedModel, eos_token_ids: Collection[int]
) -> Backend:
    """Raises ModelUnsupported when the compiled step was asked for and cannot be had."""

    def torch_because(reason: str) -> TorchBackend:
        return TorchBackend(
            opened, block_size=config.block_size, eos_token_ids=eos_token_ids, reason=reason
        )

    if config.cpu_backend is CpuBackend.TORCH:
        return torch_because("asked for")
    # Not at the top: whoever asks for torch needs no working compiler.
    from replica.engine.compiled_backend import CompiledBackend, obstacle

    reason = obstacle(opened.config, config.block_size)
    if reason is None:
        return CompiledBackend(opened, config, eos_token_ids)
    if config.cpu_backend is CpuBackend.COMPILED:
        raise ModelUnsupported(f"the compiled backend cannot run this: {reason}")
    return torch_because(reason)
