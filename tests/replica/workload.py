"""A random workload as data: generated, run against the hash model, saved and run again."""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.prefix import block_hash
from replica.engine.launcher import InlineLauncher
from replica.engine.messages import FinishReason, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.launchers import EarlyLauncher, LateLauncher

LONGEST_TOKENS = 60  # prompt and completion


class Submission(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    cache_salt: str
    priority: int = 0


class Abortion(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    sequence_id: int  # unknown ones are passed over, as in the other operations


class Preemption(msgspec.Struct, frozen=True, kw_only=True, tag="preempt"):
    sequence_id: int


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    num_steps: int


Operation = Submission | Abortion | Preemption | Steps


class Overlap(enum.StrEnum):
    """When a step is computed."""

    NONE = "none"
    EARLY = "early"
    LATE = "late"


_LAUNCHERS: Final = {
    Overlap.NONE: InlineLauncher,
    Overlap.EARLY: EarlyLauncher,
    Overlap.LATE: LateLauncher,
}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    operations: list[Operation]
    block_size: int
    spare_blocks: int  # beyond what the longest request needs
    max_num_seqs: int
    max_num_batched_tokens: int
    is_prefix_caching: bool
    is_hash_constant: bool
    aging_s: float = 30.0
    fair_share_slack_tokens: int = 256
    num_host_blocks: int = 0
    overlap: Overlap = Overlap.NONE


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKEN_BYTES[t] for t in token_ids).decode()


def run(workload: Workload) -> EngineHarness:
    """Raises AssertionError unless every answer is what the model alone would give."""
    engine = _engine(workload)
    submissions: dict[int, Submission] = {}
    for operation in workload.operations:
        match operation:
            case Submission():
                params = _params(operation)
                sequence_id = engine.submit(
                    operation.prompt, params, operation.cache_salt, operation.priority
                )
                submissions[sequence_id] = operation
            case Abortion(sequence_id=sequence_id):
                engine.abort(sequence_id)
            case Preemption(sequence_id=sequence_id):
                engine.preempt(sequence_id)
            case Steps(num_steps=num_steps):
                for _ in range(num_steps):
                    engine.step()
    engine.run()
    for sequence_id, submission in submissions.items():
        _check(engine, sequence_id, submission)
    check_counters(engine)
    return engine


def check_counters(engine: EngineHarness) -> None:
    usages = [o.usage for o in engine.outcomes.values()]
    assert all(u is not None and 0 <= u.cached_prompt_tokens <= u.prompt_tokens for u in usages)
    assert engine.stats.prompt_tokens == sum(u.prompt_tokens for u in usages if u)
    assert engine.stats.generation_tokens == sum(u.completion_tokens for u in usages if u)
    assert engine.stats.num_used_blocks == 0


def _engine(workload: Workload) -> EngineHarness:
    limits = SchedulerLimits(
        workload.block_size,
        workload.max_num_seqs,
        workload.max_num_batched_tokens,
        workload.is_prefix_caching,
        workload.aging_s,
        workload.fair_share_slack_tokens,
    )
    num_blocks = 1 + -(-LONGEST_TOKENS // workload.block_size) + workload.spare_blocks
    return EngineHarness(
        HashModel(workload.block_size),
        TOKEN_BYTES,
        [EOS],
        limits,
        num_blocks,
        _same_hash_for_all if workload.is_hash_constant else block_hash,
        workload.num_host_blocks,
        _LAUNCHERS[workload.overlap],
    )


def _same_hash_for_all(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return bytes(16)


def _params(submission: Submission) -> SamplingParams:
    return SamplingParams(max_tokens=submission.max_tokens, ignore_eos=submission.ignore_eos)


def _check(engine: EngineHarness, sequence_id: int, submission: Submission) -> None:
    outcome = engine.outcomes[sequence_id]
    expected = reference_completion(submission.prompt, _params(submission))
    assert outcome.usage is not None
    if outcome.finish_reason is FinishReason.ABORT:
        expected = expected[: outcome.num_tokens]
    else:
        assert outcome.usage.prompt_tokens == len(submission.prompt)
    assert outcome.text == text_of(expected)
    assert outcome.usage.completion_tokens == outcome.num_tokens == len(expected)
