"""How the memory there is divides into weights, working space and KV cache.

Pure arithmetic, done before any weight is read: what cannot fit is refused with its numbers, and
what is accepted never runs out later, whatever requests come.
"""

from dataclasses import dataclass

from replica.engine.block_manager import blocks_for
from replica.engine.messages import EngineConfig, Preemption
from replica.errors import ModelUnsupported
from replica.model.config import LlamaConfig

_FLOAT_BYTES = 4
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    max_model_len: int  # tokens; any request within it fits the cache alone
    num_blocks: int  # the null block included
    num_host_blocks: int  # room for copies of preempted sequences' blocks


@dataclass(frozen=True, slots=True)
class _Demand:
    """Bytes, and bytes per token of context."""

    weights: int
    activations: int
    swap: int
    block: int
    # Eager attention gathers one layer of every decoding sequence, padded to the longest.
    gathered_per_token: int

    @property
    def fixed(self) -> int:
        return self.weights + self.activations + self.swap

    def needed(self, num_tokens: int, block_size: int) -> int:
        """For one sequence of that context, with room to compute."""
        num_blocks = 1 + blocks_for(num_tokens, block_size)
        kv = num_blocks * self.block
        return self.fixed + kv + num_tokens * self.gathered_per_token

    def largest_context(self, available_bytes: int, block_size: int) -> int:
        """Tokens, in whole blocks; 0 when not even one fits."""
        left = available_bytes - self.fixed - self.block
        per_block = self.block + block_size * self.gathered_per_token
        return max(0, left // per_block) * block_size


def plan_memory(
    config: EngineConfig, model: LlamaConfig, *, weights_bytes: int, available_bytes: int
) -> MemoryPlan:
    """Raises ModelUnsupported, with the arithmetic in the message."""
    demand = _demand(config, model, weights_bytes)
    if config.preemption is Preemption.SWAP and demand.swap < demand.block:
        raise ModelUnsupported(
            f"{demand.swap} bytes for swapping hold no block: one takes {demand.block} bytes"
        )
    cache_tokens = _cache_tokens(config, demand.block)
    wanted = _wanted_context(config, model, cache_tokens)
    largest = demand.largest_context(available_bytes, config.block_size)
    if config.max_model_len is None:
        wanted = min(wanted, max(largest, config.block_size))
    if wanted > largest:
        raise ModelUnsupported(_refusal(config, demand, wanted, largest, available_bytes))
    spare = available_bytes - demand.needed(wanted, config.block_size)
    num_blocks = 1 + blocks_for(wanted, config.block_size) + spare // demand.block
    num_blocks = min(num_blocks, config.kv_cache_bytes // demand.block)
    return MemoryPlan(wanted, num_blocks, demand.swap // demand.block)


def kv_bytes_per_token(config: EngineConfig, model: LlamaConfig) -> int:
    """Keys and values, all layers."""
    head_bytes = config.kv_cache_dtype.bytes_per_head(model.head_dim)
    return 2 * model.num_layers * model.num_kv_heads * head_bytes


def _demand(config: EngineConfig, model: LlamaConfig, weights_bytes: int) -> _Demand:
    per_token = kv_bytes_per_token(config, model)
    return _Demand(
        weights=weights_bytes,
        activations=_activation_bytes(config, model),
        swap=config.swap_bytes if config.preemption is Preemption.SWAP else 0,
        block=per_token * config.block_size,
        gathered_per_token=config.max_num_seqs * per_token // model.num_layers,
    )


def _activation_bytes(config: EngineConfig, model: LlamaConfig) -> int:
    """Upper bound of what one layer of one step, and then its logits, hold at a time."""
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    row = 4 * model.hidden_size + 3 * heads + 4 * model.intermediate_size
    layer = config.max_num_batched_tokens * row
    # Sampling one row widens it to float64 a few times.
    logits = (config.max_num_seqs + 8) * model.vocab_size
    return _FLOAT_BYTES * max(layer, logits)


def _cache_tokens(config: EngineConfig, block_bytes: int) -> int:
    num_blocks = config.kv_cache_bytes // block_bytes
    if num_blocks < 2:
        raise ModelUnsupported(
            f"a KV cache of {config.kv_cache_bytes} bytes holds {num_blocks} blocks "
            f"of {block_bytes} bytes, at least 2 are needed"
        )
    return (num_blocks - 1) * config.block_size


def _wanted_context(config: EngineConfig, model: LlamaConfig, cache_tokens: int) -> int:
    if config.max_model_len is None:
        return min(model.max_positions, cache_tokens)
    if config.max_model_len > model.max_positions:
        raise ModelUnsupported(
            f"a context of {config.max_model_len} tokens was asked for, "
            f"the model has {model.max_positions}"
        )
    if config.max_model_len > cache_tokens:
        raise ModelUnsupported(
            f"a context of {config.max_model_len} tokens was asked for, the KV cache of "
            f"{config.kv_cache_bytes} bytes holds {cache_tokens}: max_model_len={cache_tokens} "
            "would fit"
        )
    return config.max_model_len


def _refusal(
    config: EngineConfig, demand: _Demand, wanted: int, largest: int, available_bytes: int
) -> str:
    needed = demand.needed(wanted, config.block_size)
    advice = (
        f"max_model_len={largest} would fit" if largest else "no context would fit: a smaller model"
    )
    return (
        f"{_mib(needed)} are needed "
        f"({_mib(demand.weights)} for weights, {_mib(demand.activations)} for activations, "
        f"{_mib(demand.swap)} for swapping, "
        f"{_mib(needed - demand.fixed)} for attention over one sequence of {wanted} tokens) and "
        f"{_mib(available_bytes)} are there; {advice}"
    )


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // _MIB)} MiB"
