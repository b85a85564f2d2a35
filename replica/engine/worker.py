"""Inside the engine process, once torch may be imported: load the model, size the cache, step."""

import time
from pathlib import Path

import torch

from contracts.replica_api import Phase
from replica.engine.block_manager import BlockManager
from replica.engine.channel import Channel
from replica.engine.loop import EngineLoop, PrefixIdentity
from replica.engine.messages import EngineConfig, Loading, Ready
from replica.engine.runner import TorchRunner
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.errors import ModelUnsupported
from replica.model import store
from replica.model.config import LlamaConfig
from replica.model.loader import open_model
from replica.model.tokenizer import Tokenizer


def serve(channel: Channel, config: EngineConfig, path: Path, tokenizer: Tokenizer) -> None:
    """Returns never.  Raises ModelError, or ChannelClosed when the HTTP process is gone."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)

    def report(ratio: float) -> None:
        channel.send(Loading(phase=Phase.LOADING, progress_ratio=ratio, detail="loading weights"))

    opened = open_model(path)
    # Before the weights: a limit that cannot be kept is said at once.
    num_blocks = _num_blocks(config, opened.config)
    max_model_len = _max_model_len(config, opened.config, num_blocks)
    runner = TorchRunner(
        opened.load(report),
        num_blocks=num_blocks,
        block_size=config.block_size,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    limits = SchedulerLimits(
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    loop = EngineLoop(
        scheduler=Scheduler(limits, BlockManager(num_blocks), tokenizer.eos_token_ids),
        runner=runner,
        token_bytes=tokenizer.token_bytes,
        identity=PrefixIdentity(model_revision=store.revision(path), kv_dtype="float32"),
        monotonic_s=time.monotonic,
    )
    channel.send(
        Ready(max_model_len=max_model_len, num_blocks=num_blocks, block_size=config.block_size)
    )
    loop.run(channel)


def _num_blocks(config: EngineConfig, model: LlamaConfig) -> int:
    """Includes the null block."""
    block_bytes = model.kv_bytes_per_token * config.block_size
    num_blocks = config.kv_cache_bytes // block_bytes
    if num_blocks < 2:
        raise ModelUnsupported(
            f"a KV cache of {config.kv_cache_bytes} bytes holds {num_blocks} blocks "
            f"of {block_bytes} bytes, at least 2 are needed"
        )
    return num_blocks


def _max_model_len(config: EngineConfig, model: LlamaConfig, num_blocks: int) -> int:
    """Any request within it fits the cache alone, so everything admitted can finish."""
    capacity = (num_blocks - 1) * config.block_size
    if config.max_model_len is None:
        return min(model.max_positions, capacity)
    if config.max_model_len > model.max_positions:
        raise ModelUnsupported(
            f"a context of {config.max_model_len} tokens was asked for, "
            f"the model has {model.max_positions}"
        )
    if config.max_model_len > capacity:
        raise ModelUnsupported(
            f"a context of {config.max_model_len} tokens was asked for, the KV cache of "
            f"{config.kv_cache_bytes} bytes holds {capacity}"
        )
    return config.max_model_len
