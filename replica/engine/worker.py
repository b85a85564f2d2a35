"""Inside the engine process: load the model, size the cache, step."""

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.replica_api import Phase
from replica.engine.backend import ReportProgress, choose_backend
from replica.engine.block_manager import BlockManager
from replica.engine.channel import Channel
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher, ThreadLauncher
from replica.engine.loop import EngineLoop
from replica.engine.memory_plan import MemoryPlan
from replica.engine.messages import Device, EngineConfig, Loading, Ready
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.model import store
from replica.model.loader import open_adapted
from replica.model.tokenizer import Tokenizer

# A step that is through must not wait for the interpreter while the loop goes on accounting: the
# usual 5 ms are as long as the step of a small model.
_SWITCH_INTERVAL_S: Final = 0.0002

# On a CPU so many take many times as long as reading the weights: more of other prompts in the step
# in which one ends save next to nothing, and its first token would come later by all of them.
_ENOUGH_PROMPT_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class _Loaded:
    plan: MemoryPlan
    runner: ModelRunner
    kv_dtype: str
    description: str
    adapter_digests: Sequence[str]


def serve(channel: Channel, config: EngineConfig, path: Path, tokenizer: Tokenizer) -> None:
    """Returns never.  Raises ModelError, or ChannelClosed when the HTTP process is gone."""

    def report(ratio: float, detail: str) -> None:
        channel.send(Loading(phase=Phase.LOADING, progress_ratio=ratio, detail=detail))

    loaded = _load(config, path, tokenizer, report)
    plan = loaded.plan
    blocks = BlockManager(plan.num_blocks, plan.num_host_blocks)
    loop = EngineLoop(
        scheduler=Scheduler(limits_of(config), blocks, tokenizer.eos_token_ids),
        launcher=_launcher(loaded.runner, config),
        token_bytes=tokenizer.token_bytes,
        identity=PrefixIdentity(model_revision=store.revision(path), kv_dtype=loaded.kv_dtype),
        monotonic_s=time.monotonic,
        adapter_digests=loaded.adapter_digests,
    )
    gc.collect()
    gc.freeze()  # what was loaded stays: looking at all of it again and again would delay steps
    channel.send(
        Ready(
            max_model_len=plan.max_model_len,
            num_blocks=plan.num_blocks,
            block_size=config.block_size,
            detail=loaded.description,
        )
    )
    loop.run(channel)


def limits_of(config: EngineConfig) -> SchedulerLimits:
    return SchedulerLimits(
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        is_prefix_caching=config.is_prefix_caching,
        aging_s=config.priority_aging_s,
        fair_share_slack_tokens=config.fair_share_slack_tokens,
        prefix_window_s=config.prefix_window_s,
        enough_prompt_tokens=_ENOUGH_PROMPT_TOKENS if config.device is Device.CPU else None,
    )


def _launcher(runner: ModelRunner, config: EngineConfig) -> StepLauncher:
    if isinstance(runner, StepLauncher):  # it computes beside us without a thread's help
        return runner
    if not config.is_async_scheduling:
        return InlineLauncher(runner)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return ThreadLauncher(runner)


def _load(
    config: EngineConfig, path: Path, tokenizer: Tokenizer, report: ReportProgress
) -> _Loaded:
    """The files are closed again, and nobody keeps what only loading needed."""
    opened = open_adapted(path, {name: Path(at) for name, at in config.adapters})
    backend = choose_backend(config, opened, tokenizer.eos_token_ids)
    plan = backend.plan(report)
    options = KvOptions(plan.num_host_blocks, is_poisoned=config.is_kv_poisoned)
    return _Loaded(
        plan=plan,
        runner=backend.load(plan.num_blocks, report, options),
        kv_dtype=backend.kv_dtype,
        description=backend.description,
        adapter_digests=[adapter.digest for adapter in opened.adapters],
    )
