"""The engine's only thread: take what arrived, schedule, execute, account, report.  No awaits."""

import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from replica.engine.batch import FlatBatch, flatten
from replica.engine.channel import Channel
from replica.engine.detokenizer import Detokenizer
from replica.engine.messages import (
    Abort,
    ClearCache,
    Delta,
    EngineConfig,
    EngineStats,
    FinishReason,
    StepReport,
    Submit,
    ToEngine,
)
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import SampledToken, ScheduledChunk, Scheduler
from replica.engine.sequence import Prompt, Standing
from replica.engine.sequence import Sequence as EngineSequence
from replica.engine.step_meter import StepMeter

logger = logging.getLogger(__name__)


class ModelRunner(Protocol):
    def execute(self, batch: FlatBatch) -> Sequence[SampledToken | None]:
        """One entry per segment; None where nothing was sampled and all numbers are finite.

        What lies in a block beyond its tokens, or was left by an earlier owner, changes nothing.
        """
        ...


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
        runner: ModelRunner,
        token_bytes: Sequence[bytes],
        identity: PrefixIdentity,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._token_bytes = token_bytes
        self._identity = identity
        self._monotonic_s = monotonic_s
        self._live: dict[int, _LiveSequence] = {}
        self._meter = StepMeter()
        self._num_arrivals = 0
        self._deadlines: list[tuple[float, int]] = []  # a heap; the finished ones stay in it

    def run(self, channel: Channel) -> None:
        """Returns never; raises ChannelClosed when the HTTP process is gone."""
        while True:
            timeout_s = 0.0 if self._scheduler.has_work else None
            report = self.step(channel.receive(timeout_s))
            if report is not None:
                channel.send(report)

    def step(self, messages: Iterable[ToEngine]) -> StepReport | None:
        """None: there was nothing to do."""
        deltas = [delta for message in messages for delta in self._take(message)]
        started_at_s = self._monotonic_s()
        deltas += self._end_overdue(started_at_s)
        chunks = self._scheduler.schedule(started_at_s)
        self._log_preemptions()
        if chunks:
            operations = self._scheduler.take_kv_operations()
            batch = flatten(chunks, self._scheduler.block_size, operations)
            tokens = self._runner.execute(batch)
            self._measure(chunks, self._monotonic_s() - started_at_s)
            for chunk, token in zip(chunks, tokens, strict=True):
                deltas += self._account(chunk, token, started_at_s)
        block_changes = self._scheduler.take_block_changes()
        if not chunks and not deltas and not block_changes:
            return None
        return StepReport(
            deltas=deltas,
            stats=self._stats(),
            num_batched_tokens=sum(chunk.num_tokens for chunk in chunks),
            block_changes=block_changes,
        )

    def _measure(self, chunks: Sequence[ScheduledChunk], duration_s: float) -> None:
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        num_decoded = sum(chunk.num_tokens == 1 for chunk in chunks)
        self._meter.note(
            num_prefilled=num_tokens - num_decoded, num_decoded=num_decoded, duration_s=duration_s
        )

    def _stats(self) -> EngineStats:
        return msgspec.structs.replace(
            self._scheduler.stats(),
            prefill_tokens_per_s=self._meter.prefill.tokens_per_s,
            decode_tokens_per_s=self._meter.decode.tokens_per_s,
        )

    def _log_preemptions(self) -> None:
        for preempted in self._scheduler.take_preempted():
            extra = {"reason": preempted.kind, "num_blocks": preempted.num_blocks}
            logger.info("preempted", extra=extra)

    def _take(self, message: ToEngine) -> Iterable[Delta]:
        match message:
            case Submit():
                self._add(message)
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
        return [self._final(sequence, text="", token_id=None, queue_s=None)]

    def _add(self, message: Submit) -> None:
        self._num_arrivals += 1
        now_s = self._monotonic_s()
        detokenizer = Detokenizer(self._token_bytes, message.params.stop)
        num_prompt_tokens = len(message.prompt_token_ids) - message.num_resumed_tokens
        detokenizer.resume(message.prompt_token_ids[num_prompt_tokens:], message.params.min_tokens)
        self._live[message.sequence_id] = _LiveSequence(detokenizer, now_s)
        if message.time_left_s is not None:
            heapq.heappush(self._deadlines, (now_s + message.time_left_s, message.sequence_id))
        self._scheduler.add(
            EngineSequence(
                sequence_id=message.sequence_id,
                standing=Standing(self._num_arrivals, message.cache_salt, message.priority, now_s),
                prompt=Prompt(
                    message.prompt_token_ids,
                    message.num_resumed_tokens,
                    is_counted=message.is_prompt_counted,
                ),
                params=message.params,
                root=self._identity.root(message.cache_salt),
            )
        )

    def _account(
        self, chunk: ScheduledChunk, token: SampledToken | None, started_at_s: float
    ) -> list[Delta]:
        sequence = chunk.sequence
        self._scheduler.update(sequence, chunk.num_tokens, token)
        if token is None:
            return []
        live = self._live[sequence.sequence_id]
        queue_s = None if live.has_reported else started_at_s - live.submitted_at_s
        live.has_reported = True
        if not token.is_finite:
            return [self._final(sequence, text="", token_id=None, queue_s=queue_s)]
        text = self._detokenize(sequence, live.detokenizer, token.token_id)
        if sequence.finish_reason is not None:
            return [self._final(sequence, text=text, token_id=token.token_id, queue_s=queue_s)]
        return [
            Delta(
                sequence_id=sequence.sequence_id,
                text=text,
                num_tokens=1,
                token_id=token.token_id,
                queue_s=queue_s,
            )
        ]

    def _detokenize(self, sequence: EngineSequence, detokenizer: Detokenizer, token_id: int) -> str:
        """May finish the sequence at a stop string, also one that its last token completed."""
        result = detokenizer.push(
            token_id,
            may_stop=sequence.num_completion_tokens > sequence.params.min_tokens,
            is_last=sequence.finish_reason is not None,
        )
        if result.is_stopped and sequence.finish_reason is None:
            self._scheduler.finish(sequence, FinishReason.STOP)
        elif result.is_stopped:
            sequence.finish_reason = FinishReason.STOP
        return result.text

    def _final(
        self, sequence: EngineSequence, *, text: str, token_id: int | None, queue_s: float | None
    ) -> Delta:
        del self._live[sequence.sequence_id]
        return Delta(
            sequence_id=sequence.sequence_id,
            text=text,
            num_tokens=0 if token_id is None else 1,
            token_id=token_id,
            finish_reason=sequence.finish_reason,
            usage=sequence.usage,
            queue_s=queue_s,
        )
