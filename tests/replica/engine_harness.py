"""The whole engine process but for its process: loop, scheduler, blocks and detokenizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.prefix import block_hash
from replica.engine.block_manager import BlockManager
from replica.engine.launcher import InlineLauncher, ModelRunner, StepLauncher
from replica.engine.loop import EngineLoop
from replica.engine.messages import (
    Abort,
    ClearCache,
    Delta,
    FinishReason,
    SamplingParams,
    StepReport,
    Submit,
    ToEngine,
    TokenLogprobs,
    Usage,
)
from replica.engine.prefix import HashBlock, PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits

STEP_S = 0.05

NewLauncher = Callable[[ModelRunner], StepLauncher]


@dataclass(slots=True)
class Outcome:
    text: str = ""
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class EngineHarness:
    """Checks the invariants after every step.  A step takes STEP_S of virtual time."""

    def __init__(
        self,
        runner: ModelRunner,
        token_bytes: Sequence[bytes],
        eos_token_ids: Sequence[int],
        limits: SchedulerLimits,
        num_blocks: int,
        hash_block: HashBlock = block_hash,
        num_host_blocks: int = 0,
        new_launcher: NewLauncher = InlineLauncher,
        adapter_digests: Sequence[str] = (),
    ) -> None:
        self.blocks = BlockManager(num_blocks, num_host_blocks)
        self._scheduler = Scheduler(limits, self.blocks, eos_token_ids)
        self._loop = EngineLoop(
            scheduler=self._scheduler,
            launcher=new_launcher(runner),
            token_bytes=token_bytes,
            identity=PrefixIdentity("test", "float32", hash_block),
            monotonic_s=lambda: self.now_s,
            adapter_digests=adapter_digests,
        )
        self.now_s = 0.0
        self.on_report: Callable[[StepReport], None] = lambda report: None
        self._enqueued: list[ToEngine] = []
        self.outcomes: dict[int, Outcome] = {}
        self.stats = self._scheduler.stats()

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cache_salt: str = "",
        priority: int = 0,
        **fields: Any,
    ) -> int:
        """Takes a step."""
        sequence_id = self.enqueue(prompt, params, cache_salt, priority, **fields)
        self.step()
        return sequence_id

    def enqueue(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cache_salt: str = "",
        priority: int = 0,
        **fields: Any,
    ) -> int:
        """The next step takes it in."""
        (sequence_id,) = self.enqueue_as_it_is(
            Submit(
                sequence_id=len(self.outcomes) + 1,
                prompt_token_ids=list(prompt),
                params=params,
                cache_salt=cache_salt,
                priority=priority,
                **fields,
            )
        )
        return sequence_id

    def enqueue_as_it_is(self, submit: Submit) -> Sequence[int]:
        """The choices' ids, of which the first is one more than the last one's."""
        assert submit.sequence_id == len(self.outcomes) + 1
        ids = range(submit.sequence_id, submit.sequence_id + submit.num_choices)
        self.outcomes.update({sequence_id: Outcome() for sequence_id in ids})
        self._enqueued.append(submit)
        return ids

    def submit_together(
        self, prompts: Iterable[Sequence[int]], params: SamplingParams
    ) -> list[int]:
        ids = [self.enqueue(prompt, params) for prompt in prompts]
        self.step()
        return ids

    def abort(self, sequence_id: int) -> None:
        self.step([Abort(sequence_id=sequence_id)])

    def clear_cache(self) -> StepReport | None:
        return self.step([ClearCache()])

    def preempt(self, sequence_id: int) -> None:
        """If it is running."""
        sequence = self._scheduler.get(sequence_id)
        if sequence is not None and sequence.is_running:
            self._scheduler.preempt(sequence)
            self._scheduler.check_invariants()

    def step(self, messages: Iterable[ToEngine] = ()) -> StepReport | None:
        enqueued, self._enqueued = self._enqueued, []
        report = self._loop.step([*enqueued, *messages])
        self.now_s += STEP_S
        self._scheduler.check_invariants()
        if report is not None:
            self.on_report(report)
            self.stats = report.stats
            for delta in report.deltas:
                self._note(delta)
        return report

    def usage_so_far(self, sequence_id: int) -> Usage:
        """Of one that has been submitted, finished or not."""
        sequence = self._scheduler.get(sequence_id)
        if sequence is not None:
            return sequence.usage
        usage = self.outcomes[sequence_id].usage
        assert usage is not None
        return usage

    def run(self, max_steps: int = 100_000) -> None:
        """Until nothing is live."""
        for _ in range(max_steps):
            if self.step() is None:
                return
        raise AssertionError(f"not idle after {max_steps} steps")

    def _note(self, delta: Delta) -> None:
        outcome = self.outcomes[delta.sequence_id]
        assert outcome.finish_reason is None, "a delta after the last one"
        outcome.text += delta.text
        outcome.num_tokens += delta.num_tokens
        if delta.logprobs is not None:
            outcome.logprobs.append(delta.logprobs)
        outcome.finish_reason = delta.finish_reason
        outcome.usage = delta.usage
