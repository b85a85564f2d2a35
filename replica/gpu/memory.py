"""How a device's memory divides into weights, working space, graphs and KV cache: arithmetic."""

from dataclasses import dataclass
from typing import Final

from replica.engine.block_manager import blocks_for
from replica.engine.memory_plan import MemoryPlan
from replica.engine.messages import EngineConfig, Preemption
from replica.errors import ModelUnsupported
from replica.model.config import LlamaConfig

_MIB: Final = 1 << 20
_LEFT_RATIO: Final = 0.05  # of what is free: the allocator's fragments, and libraries' own buffers


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """Bytes, measured but for the block's."""

    free: int  # with the weights loaded
    activations: int  # the worst step's
    graphs: int
    block: int  # of all layers

    @property
    def for_blocks(self) -> int:
        return int(self.free * (1.0 - _LEFT_RATIO)) - self.activations - self.graphs


def plan_device_memory(
    config: EngineConfig, model: LlamaConfig, demand: DeviceDemand
) -> MemoryPlan:
    """All that is left holds keys and values.  Raises ModelUnsupported, with the arithmetic."""
    num_blocks = max(0, demand.for_blocks) // demand.block
    cache_tokens = max(0, num_blocks - 1) * config.block_size
    wanted = model.max_positions if config.max_model_len is None else config.max_model_len
    if wanted > model.max_positions:
        raise ModelUnsupported(
            f"a context of {wanted} tokens was asked for, the model has {model.max_positions}"
        )
    if config.max_model_len is None and cache_tokens:
        wanted = min(wanted, cache_tokens)
    if blocks_for(wanted, config.block_size) >= num_blocks:
        raise ModelUnsupported(_refusal(demand, wanted, cache_tokens))
    is_swapping = config.preemption is Preemption.SWAP
    num_host_blocks = config.swap_bytes // demand.block if is_swapping else 0
    return MemoryPlan(wanted, num_blocks, num_host_blocks)


def _refusal(demand: DeviceDemand, wanted: int, cache_tokens: int) -> str:
    advice = f"max_model_len={cache_tokens} would fit" if cache_tokens else "a smaller model would"
    return (
        f"of {demand.free // _MIB} MiB that weights leave on the device, steps take "
        f"{demand.activations // _MIB} MiB and graphs {demand.graphs // _MIB} MiB; "
        f"the rest holds {cache_tokens} tokens, {wanted} were asked for; {advice}"
    )
