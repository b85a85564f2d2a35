"""What computes the steps: a GPU; else torch, which runs every model, or the faster compiled step.

Chosen before any weight is read, because they keep weights in memory differently.
"""

import shutil
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from replica.engine.kv_blocks import PLAIN, KvOptions
from replica.engine.launcher import ModelRunner
from replica.engine.memory_plan import MemoryPlan
from replica.engine.messages import CpuBackend, Device, EngineConfig, KvCacheDtype, Precision
from replica.errors import ModelUnsupported
from replica.model.loader import OpenedModel

if TYPE_CHECKING:
    from replica.engine.torch_backend import TorchBackend

# SmolLM2, two cores, alone and sixteen at once: benchmarks/RESULTS.md.
TORCH_COSTS: Final = "a token takes 2 to 5 times as long as with compiled kernels"
ReportProgress = Callable[[float, str], None]  # 0 to 1, and what is being done


class Backend(Protocol):
    @property
    def description(self) -> str:
        """Which it is, and why: one line for people."""
        ...

    @property
    def kv_dtype(self) -> str:
        """Names what keys and values truly are, and what they were computed with.

        Part of a prefix's identity: equal names mean that blocks can stand for each other.
        """
        ...

    @property
    def weights_bytes(self) -> int:
        """In memory."""
        ...

    def plan(self, report: ReportProgress) -> MemoryPlan:
        """How much it can hold.  A limit that cannot be kept is said at once: raises ModelError."""
        ...

    def load(
        self, num_blocks: int, report: ReportProgress, options: KvOptions = PLAIN
    ) -> ModelRunner:
        """Raises ModelError."""
        ...


def choose_backend(
    config: EngineConfig, opened: OpenedModel, eos_token_ids: Collection[int]
) -> Backend:
    """Raises ModelUnsupported when what was asked for, or what only it can do, cannot be had."""
    if config.device is Device.CUDA:
        return _cuda_backend(config, opened, eos_token_ids)
    is_plain = config.precision is Precision.EXACT and config.kv_cache_dtype is KvCacheDtype.FLOAT32

    def torch_because(reason: str) -> "TorchBackend":
        if not is_plain:
            raise ModelUnsupported(
                f"precision {config.precision} with {config.kv_cache_dtype} keys and values needs "
                f"the compiled backend: {reason}"
            )
        # Not at the top: whoever steps with compiled code needs no torch, nor its 300 MB.
        from replica.engine.torch_backend import TorchBackend

        return TorchBackend(opened, config, eos_token_ids, reason)

    if config.cpu_backend is CpuBackend.TORCH:
        return torch_because("asked for")
    # Not at the top: whoever asks for torch needs no working compiler.
    from replica.engine.compiled_backend import CompiledBackend, obstacle

    reason = obstacle(opened.config, config)
    if reason is None:
        return CompiledBackend(opened, config, eos_token_ids)
    if config.cpu_backend is CpuBackend.COMPILED:
        raise ModelUnsupported(f"the compiled backend cannot run this: {reason}")
    return torch_because(f"{reason}; {TORCH_COSTS}")


def _cuda_backend(
    config: EngineConfig, opened: OpenedModel, eos_token_ids: Collection[int]
) -> Backend:
    # Not at the top: it takes torch, which the compiled step does without.
    import torch

    if not torch.cuda.is_available():
        raise ModelUnsupported("device cuda was asked for, and torch finds no GPU that it can use")
    from kernels.devices import compiler_obstacle

    obstacle = compiler_obstacle(shutil.which)
    if obstacle is not None:
        raise ModelUnsupported(f"device cuda was asked for, and {obstacle}")
    from replica.gpu.backend import DeviceBackend
    from replica.gpu.device import CudaDevice

    return DeviceBackend(opened, config, eos_token_ids, CudaDevice())
