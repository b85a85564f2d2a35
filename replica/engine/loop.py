"""The engine's thread: take what arrived, schedule, launch, account for what is done, report.

With a launcher that computes beside it, a step is computed while the one before is accounted for
and the one after is scheduled.  The one after assumes that everyone goes on: what it computes for a
sequence that turns out to have ended is dropped.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from replica.engine.batch import flatten
from replica.engine.channel import Channel
from replica.engine.detokenizer import Detokenizer
from replica.engine.idle_audit import IdleAudit
from replica.engine.launcher import LaunchedStep, StepLauncher
from replica.engine.messages import (
    Abort,
    ClearCache,
    Delta,
    EngineConfig,
    EngineStats,
    FinishReason,
    PromptComputed,
    StepReport,
    Submit,
    ToEngine,
)
from replica.engine.prefix import Prefix, PrefixIdentity
from replica.engine.scheduler import Scheduler
from replica.engine.sequence import Prompt, Standing
from replica.engine.sequence import Sequence as EngineSequence
from replica.engine.step import SampledToken, ScheduledChunk
from replica.engine.step_meter import StepMeter
from replica.engine.submission import choice_seed


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    launched: LaunchedStep
    chunks: Sequence[ScheduledChunk]
    launched_at_s: float

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


class _LiveSequence:
    """What the loop keeps beside the scheduler's own record."""

    __slots__ = ("detokenizer", "has_reported", "submitted_at_s")

    def __init__(self, detokenizer: Detokenizer, submitted_at_s: float) -> None:
        self.detokenizer = detokenizer
        self.submitted_at_s = submitted_at_s
        self.has_reported = False


class EngineLoop:
    def __init__(
        self,
        *,
        scheduler: Scheduler,
        launcher: StepLauncher,
        token_bytes: Sequence[bytes],
        identity: PrefixIdentity,
        monotonic_s: Callable[[], float],
        adapter_digests: Sequence[str] = (),
    ) -> None:
        """adapter_digests: of the loaded ones, in their order."""
        self._adapter_digests = adapter_digests
        self._scheduler = scheduler
        self._launcher = launcher
        self._token_bytes = token_bytes
        self._identity = identity
        self._monotonic_s = monotonic_s
        self._live: dict[int, _LiveSequence] = {}
        self._in_flight: deque[_StepInFlight] = deque()
        self._retired_at_s = 0.0
        self._meter = StepMeter()
        self._audit = IdleAudit(scheduler.check_invariants)
        self._num_arrivals = 0
        self._prompts: list[PromptComputed] = []
        self._deadlines: list[tuple[float, int]] = []  # a heap; the finished ones stay in it

    def run(self, channel: Channel) -> None:
        """Returns never; raises ChannelClosed when the HTTP process is gone."""
        while True:
            timeout_s = 0.0 if self._has_work else self._audit.due_in_s(self._monotonic_s())
            report = self.step(channel.receive(timeout_s))
            if report is not None:
                channel.send(report)

    @property
    def _has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight)

    def step(self, messages: Iterable[ToEngine]) -> StepReport | None:
        """None: there was nothing to do."""
        deltas = [delta for message in messages for delta in self._take(message)]
        now_s = self._monotonic_s()
        deltas += self._end_overdue(now_s)
        is_launched = self._launch(now_s)
        num_ahead = self._launcher.num_ahead if is_launched else 0
        num_batched_tokens = 0
        while len(self._in_flight) > num_ahead:
            num_batched_tokens += self._in_flight[0].num_tokens
            deltas += self._retire(self._in_flight.popleft())
        block_changes = self._scheduler.take_block_changes()
        if is_launched or num_batched_tokens or deltas or block_changes:
            self._audit.owe()
        elif self._has_work or not self._audit.run_if_due(now_s):
            return None
        return StepReport(
            deltas=deltas,
            stats=self._stats(),
            num_batched_tokens=num_batched_tokens,
            block_changes=block_changes,
            preempted=self._scheduler.take_preempted(),
            prompts=self._take_prompts(),
        )

    def _launch(self, now_s: float) -> bool:
        """False: nothing can be done, or not before a step in flight has retired."""
        chunks = self._scheduler.schedule(now_s)
        if not chunks:
            return False
        before = self._in_flight[-1].chunks if self._in_flight else ()
        segments_before = {c.sequence.sequence_id: index for index, c in enumerate(before)}
        operations = self._scheduler.take_kv_operations()
        batch = flatten(chunks, self._scheduler.block_size, operations, segments_before)
        self._in_flight.append(_StepInFlight(self._launcher.launch(batch), chunks, now_s))
        return True

    def _retire(self, step: _StepInFlight) -> list[Delta]:
        """Wait for it and account for it."""
        tokens = step.launched.result()
        self._measure(step)
        self._scheduler.retire()
        deltas: list[Delta] = []
        for chunk, token in zip(step.chunks, tokens, strict=True):
            if not chunk.is_void:
                deltas += self._account(chunk, token, step.launched_at_s)
        return deltas

    def _measure(self, step: _StepInFlight) -> None:
        """A step that was launched early began when the one before had ended.

        What was prefilled in vain took its time all the same; a token decoded in vain is none.
        """
        began_at_s = max(step.launched_at_s, self._retired_at_s)
        self._retired_at_s = self._monotonic_s()
        decoding = [chunk for chunk in step.chunks if chunk.is_decoding]
        self._meter.note(
            num_prefilled=step.num_tokens - len(decoding),
            num_decoded=sum(not chunk.is_void for chunk in decoding),
            duration_s=self._retired_at_s - began_at_s,
        )

    def _stats(self) -> EngineStats:
        return msgspec.structs.replace(
            self._scheduler.stats(),
            prefill_tokens_per_s=self._meter.prefill.tokens_per_s,
            decode_tokens_per_s=self._meter.decode.tokens_per_s,
            num_audits=self._audit.num_audits,
            num_audit_faults=self._audit.num_faults,
        )

    def _take(self, message: ToEngine) -> Iterable[Delta]:
        match message:
            case Submit():
                for index in range(message.num_choices):
                    self._add(message, index)
            case Abort(sequence_id=sequence_id):
                return self._end(sequence_id, FinishReason.ABORT)
            case ClearCache():
                self._scheduler.clear_cache()
            case EngineConfig():
                raise ValueError("the engine is configured already")
        return []

    def _end_overdue(self, now_s: float) -> list[Delta]:
        deltas: list[Delta] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, sequence_id = heapq.heappop(self._deadlines)
            deltas += self._end(sequence_id, FinishReason.DEADLINE)
        return deltas

    def _end(self, sequence_id: int, reason: FinishReason) -> list[Delta]:
        """Nothing, when it has ended already."""
        sequence = self._scheduler.get(sequence_id)
        if sequence is None:
            return []
        self._scheduler.finish(sequence, reason)
        return [self._final(sequence, text="", token=None)]

    def _add(self, message: Submit, index: int) -> None:
        """One choice.  The prompt counts as the first one's."""
        self._num_arrivals += 1
        now_s = self._monotonic_s()
        sequence_id = message.sequence_id + index
        params = message.params
        detokenizer = Detokenizer(self._token_bytes, params.stop)
        num_prompt_tokens = len(message.prompt_token_ids) - message.num_resumed_tokens
        detokenizer.resume(message.prompt_token_ids[num_prompt_tokens:], params.min_tokens)
        self._live[sequence_id] = _LiveSequence(detokenizer, now_s)
        if message.time_left_s is not None:
            heapq.heappush(self._deadlines, (now_s + message.time_left_s, sequence_id))
        self._scheduler.add(
            EngineSequence(
                sequence_id=sequence_id,
                standing=Standing(self._num_arrivals, message.cache_salt, message.priority, now_s),
                prompt=Prompt(
                    message.prompt_token_ids, message.num_resumed_tokens, is_counted=index == 0
                ),
                params=msgspec.structs.replace(params, seed=choice_seed(params.seed, index)),
                root=self._root(message),
                adapter=message.adapter,
            )
        )

    def _root(self, message: Submit) -> Prefix:
        adapter = message.adapter
        digest = None if adapter is None else self._adapter_digests[adapter]
        return self._identity.root(message.cache_salt, digest)

    def _account(
        self, chunk: ScheduledChunk, token: SampledToken | None, launched_at_s: float
    ) -> list[Delta]:
        sequence = chunk.sequence
        self._scheduler.update(chunk, token)
        if token is None:
            return []
        live = self._live[sequence.sequence_id]
        delta = self._delta(sequence, live.detokenizer, token)
        if live.has_reported:
            return [delta]
        live.has_reported = True
        self._note_prompt(sequence)
        queue_s = launched_at_s - live.submitted_at_s
        cached = sequence.num_cached_prompt_tokens
        return [msgspec.structs.replace(delta, queue_s=queue_s, cached_prompt_tokens=cached)]

    def _delta(
        self, sequence: EngineSequence, detokenizer: Detokenizer, token: SampledToken
    ) -> Delta:
        if not token.is_finite:
            return self._final(sequence, text="", token=None)
        text = self._detokenize(sequence, detokenizer, token.token_id)
        if sequence.finish_reason is not None:
            return self._final(sequence, text=text, token=token)
        return Delta(
            sequence_id=sequence.sequence_id,
            text=text,
            num_tokens=1,
            token_id=token.token_id,
            logprobs=token.logprobs,
        )

    def _note_prompt(self, sequence: EngineSequence) -> None:
        size = self._scheduler.block_size
        num_tokens = sequence.num_prompt_tokens + sequence.num_resumed_tokens
        if self._scheduler.is_prefix_caching and sequence.is_prompt_counted and num_tokens >= size:
            digest = sequence.block_prefix(num_tokens // size - 1, size).digest
            self._prompts.append(PromptComputed(sequence.sequence_id, digest, num_tokens, size))

    def _take_prompts(self) -> list[PromptComputed]:
        prompts, self._prompts = self._prompts, []
        return prompts

    def _detokenize(self, sequence: EngineSequence, detokenizer: Detokenizer, token_id: int) -> str:
        """May finish the sequence at a stop string, also one that its last token completed."""
        result = detokenizer.push(
            token_id,
            may_stop=sequence.num_completion_tokens > sequence.params.min_tokens,
            is_last=sequence.finish_reason is not None,
        )
        if result.is_stopped:
            self._scheduler.stop(sequence)
        return result.text

    def _final(self, sequence: EngineSequence, *, text: str, token: SampledToken | None) -> Delta:
        del self._live[sequence.sequence_id]
        return Delta(
            sequence_id=sequence.sequence_id,
            text=text,
            num_tokens=0 if token is None else 1,
            token_id=None if token is None else token.token_id,
            logprobs=None if token is None else token.logprobs,
            finish_reason=sequence.finish_reason,
            usage=sequence.usage,
        )
