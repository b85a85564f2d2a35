"""A random workload as data: generated, run against the hash model, saved and run again."""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.prefix import block_hash
from replica.engine.detokenizer import Detokenizer
from replica.engine.launcher import InlineLauncher
from replica.engine.messages import FinishReason, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.engine.submission import Work
from replica.engine.submission import submission as requested
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
    num_choices: int = 1
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    time_left_s: float | None = None
    num_resumed_tokens: int = 0  # at most; never all there are


class Abortion(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    sequence_id: int  # unknown ones are passed over, as in the other operations


class Preemption(msgspec.Struct, frozen=True, kw_only=True, tag="preempt"):
    sequence_id: int


class Clearing(msgspec.Struct, frozen=True, kw_only=True, tag="clear"):
    """Of the prefix cache."""


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    num_steps: int


Operation = Submission | Abortion | Preemption | Clearing | Steps


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
    submitted: list[tuple[Sequence[int], Submission]] = []
    for operation in workload.operations:
        match operation:
            case Submission():
                submitted.append((_submit(engine, operation), operation))
            case Abortion(sequence_id=sequence_id):
                engine.abort(sequence_id)
            case Preemption(sequence_id=sequence_id):
                engine.preempt(sequence_id)
            case Clearing():
                engine.clear_cache()
            case Steps(num_steps=num_steps):
                for _ in range(num_steps):
                    engine.step()
    engine.run()
    for ids, submission in submitted:
        for sequence_id in ids:
            _check(engine, sequence_id, submission, is_prompt_counted=sequence_id == ids[0])
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


def _submit(engine: EngineHarness, submission: Submission) -> Sequence[int]:
    """The choices' ids, first one first.  Takes a step."""
    work = Work(
        submission.prompt,
        _params(submission),
        submission.num_choices,
        submission.cache_salt,
        submission.priority,
        resume_token_ids=_resumed(submission),
    )
    submit = requested(work, len(engine.outcomes) + 1, submission.time_left_s)
    ids = engine.enqueue_as_it_is(submit)
    engine.step()
    return ids


def _params(submission: Submission) -> SamplingParams:
    return SamplingParams(
        max_tokens=submission.max_tokens,
        ignore_eos=submission.ignore_eos,
        min_tokens=min(submission.min_tokens, submission.max_tokens),
        stop=submission.stop,
        presence_penalty=submission.presence_penalty,
    )


def _resumed(submission: Submission) -> list[int]:
    """The beginning of the answer, as if another engine had given it."""
    tokens, _ = reference_answer(submission.prompt, _params(submission))
    return tokens[: min(submission.num_resumed_tokens, len(tokens) - 1)]


def reference_answer(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
    """The tokens and the text, up to a stop string that lies behind ``min_tokens``."""
    tokens = reference_completion(prompt, params)
    fixed = text_of(tokens[: params.min_tokens])
    for end in range(params.min_tokens + 1, len(tokens) + 1):
        text = text_of(tokens[params.min_tokens : end])  # no token is more than one character
        starts = [start for stop in params.stop if (start := text.find(stop)) >= 0]
        if starts:
            return tokens[:end], fixed + text[: min(starts)]
    return tokens, text_of(tokens)


def _check(
    engine: EngineHarness, sequence_id: int, submission: Submission, *, is_prompt_counted: bool
) -> None:
    outcome = engine.outcomes[sequence_id]
    tokens, text = reference_answer(submission.prompt, _params(submission))
    resumed = _resumed(submission)
    assert outcome.usage is not None
    assert outcome.usage.completion_tokens == outcome.num_tokens
    num_tokens = len(resumed) + outcome.num_tokens
    told = _told(submission, resumed) + outcome.text
    if outcome.finish_reason in (FinishReason.ABORT, FinishReason.DEADLINE):
        longest_stop = max(map(len, submission.stop), default=1)
        assert text_of(tokens[:num_tokens]).startswith(told)
        assert num_tokens <= len(tokens)
        # What may become a stop string is held back, and then never told.
        assert len(told) > len(text_of(tokens[:num_tokens])) - longest_stop
    else:
        assert (told, num_tokens) == (text, len(tokens))
        num_read = len(submission.prompt) + len(resumed)
        assert outcome.usage.prompt_tokens == (num_read if is_prompt_counted else 0)


def _told(submission: Submission, resumed: list[int]) -> str:
    """What the engine that was resumed from had told: all but what may become a stop string."""
    detokenizer = Detokenizer(TOKEN_BYTES, submission.stop)
    min_tokens = _params(submission).min_tokens
    return "".join(
        detokenizer.push(token_id, may_stop=index >= min_tokens, is_last=False).text
        for index, token_id in enumerate(resumed)
    )
