"""Which sequence computes how many tokens in the next step, and in which blocks.

A deterministic function of what was added, aborted, generated and of the time passed in: no clock,
no device, no awaiting.  One rule covers everything: a step hands out at most
``max_num_batched_tokens`` tokens, first to decoding sequences (one each), then to running prefills,
then to waiting ones; where more tokens take more time it is full sooner once a prompt ends in it,
unless many wait.  When blocks run out, the sequence that ranks last (lowest priority, then latest
arrival) gives its own back and recomputes later, in its old place; the first in rank therefore
always advances, and since no admitted sequence is larger than the pool, everyone finishes.  Who
waits displaces who runs only for a better priority, or when the other's tenant runs more sequences
and has been served more by ``fair_share_slack_tokens``: each turn is progress.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from replica.engine.block_manager import BlockManager
from replica.engine.block_tables import BlockTables
from replica.engine.fair_share import ServedTokens
from replica.engine.giving_way import GivingWay
from replica.engine.kv_operations import KvOperation
from replica.engine.messages import BlockChange, EngineStats, FinishReason, Preempted
from replica.engine.output_forecast import OutputForecast
from replica.engine.running_set import RunningSet
from replica.engine.sequence import Sequence
from replica.engine.step import SampledToken, ScheduledChunk, StepPlan
from replica.engine.waiting_queue import Ranking, WaitingQueue

_MAX_HELD_BACK: Final = 64  # per step: for each, its prefix is looked up
_FEW_WAITING: Final = 3  # where more do, the last of them gains by full steps


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    block_size: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    is_prefix_caching: bool = True
    aging_s: float = 30.0  # of waiting make up for one level of priority
    fair_share_slack_tokens: int = 64  # how far tenants may drift apart before one is displaced
    prefix_window_s: float = 5.0  # a cached prefix weighs as much as coming so much earlier
    enough_prompt_tokens: int | None = None  # of a step in which one ends; None: as of any other


class Scheduler:
    def __init__(
        self, limits: SchedulerLimits, blocks: BlockManager, eos_token_ids: Collection[int]
    ) -> None:
        self._limits = limits
        self._blocks = blocks
        self._tables = BlockTables(
            blocks, limits.block_size, is_prefix_caching=limits.is_prefix_caching
        )
        self._eos_token_ids = frozenset(eos_token_ids)
        ranking = Ranking(limits.aging_s)
        self._waiting = WaitingQueue(ranking, limits.prefix_window_s)
        self._running = RunningSet(ranking)
        self._served = ServedTokens()
        self._forecast = OutputForecast()
        self._by_id: dict[int, Sequence] = {}
        self._first_in_line: Sequence | None = None  # others were displaced for it
        self._giving_way = GivingWay(blocks, limits.block_size)
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    @property
    def block_size(self) -> int:
        return self._limits.block_size

    @property
    def is_prefix_caching(self) -> bool:
        return self._limits.is_prefix_caching

    @property
    def has_work(self) -> bool:
        return bool(self._by_id)

    def add(self, sequence: Sequence) -> None:
        """Raises ValueError for a sequence that could never finish in this pool."""
        num_tokens = sequence.num_prompt_tokens + sequence.params.max_tokens
        if not sequence.num_prompt_tokens or sequence.params.max_tokens < 1:
            raise ValueError("expected a prompt and max_tokens of at least 1")
        if self._tables.num_blocks(num_tokens) > self._blocks.num_usable:
            raise ValueError(f"{num_tokens} tokens do not fit {self._blocks.num_usable} blocks")
        self._by_id[sequence.sequence_id] = sequence
        self._served.enter(sequence.standing.tenant)
        self._forecast.enter(sequence.params.max_tokens, sequence.num_completion_tokens)
        self._waiting.add(sequence)

    def get(self, sequence_id: int) -> Sequence | None:
        """None: unknown, or finished already."""
        return self._by_id.get(sequence_id)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take a live sequence out and free its blocks; steps in flight add nothing to it."""
        if reason is FinishReason.ERROR:
            for block in sequence.block_table:
                self._blocks.forget(block)
        sequence.finish_reason = reason
        del self._by_id[sequence.sequence_id]
        self._served.leave(sequence.standing.tenant)
        self._forecast.leave(
            sequence.params.max_tokens,
            sequence.num_completion_tokens,
            is_complete=reason in (FinishReason.STOP, FinishReason.LENGTH),
        )
        if sequence.is_running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
            self._giving_way.discard(sequence)
        self._tables.release(sequence)

    def stop(self, sequence: Sequence) -> None:
        """At a stop string, also one that the token completed with which it has just ended."""
        if sequence.finish_reason is None:
            self.finish(sequence, FinishReason.STOP)
        else:
            sequence.finish_reason = FinishReason.STOP

    def clear_cache(self) -> None:
        """Every prefix must be computed anew, also where there are copies of it."""
        self._blocks.clear()
        for sequence in [s for s in self._waiting if s.saved is not None]:
            self._waiting.remove(sequence)
            self._giving_way.discard(sequence)
            self._waiting.add(sequence)

    def take_block_changes(self) -> list[BlockChange]:
        return self._blocks.take_changes()

    def take_kv_operations(self) -> list[KvOperation]:
        """To carry out before the step that was scheduled last."""
        return self._blocks.take_operations()

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks away; it goes on later, in its old place.

        What it had computed is kept in host memory, or computed again.
        """
        self._running.remove(sequence)
        self._giving_way.save(sequence)
        self._tables.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_awaited_tokens = 0
        self._waiting.add(sequence)

    def take_preempted(self) -> list[Preempted]:
        """Since it was last called."""
        return self._giving_way.take_latest()

    def schedule(self, now_s: float) -> list[ScheduledChunk]:
        """The next step.  Blocks for every chunk are in its sequence's table.

        Empty when nothing is live, or all that could be done waits for a step in flight.
        """
        limits = self._limits
        enough = limits.enough_prompt_tokens if len(self._waiting) <= _FEW_WAITING else None
        step = StepPlan(limits.max_num_batched_tokens, enough)
        num_preemptions = self._giving_way.num_preemptions
        is_short_of_blocks = False
        for sequence, num_missing in self._running.in_order_of_service():
            num_tokens = min(num_missing, step.num_free_tokens)
            if not num_tokens:
                break
            if not sequence.is_running:
                continue  # preempted by a better rank in this very loop
            num_lacking = self._tables.num_lacking(sequence, num_tokens)
            if num_lacking <= 0 or self._make_room(sequence, num_lacking, step):
                step.put(sequence, num_tokens, is_sampled=num_tokens == num_missing)
            else:
                is_short_of_blocks = True
        if not is_short_of_blocks and num_preemptions == self._giving_way.num_preemptions:
            self._admit(step, now_s)
        chunks = step.chunks()
        if chunks:
            self._tables.begin_step(chunks)
        return chunks

    def retire(self) -> None:
        """The earliest step in flight is through: nothing more is written for it."""
        self._tables.retire_step()

    def update(self, chunk: ScheduledChunk, sampled: SampledToken | None) -> None:
        """Account for a chunk, not void, of the step that retired.

        ``sampled`` is None for one that decided nothing.
        """
        sequence = chunk.sequence
        fresh = sequence.count_prompt(chunk.end)
        self._num_prompt_tokens += fresh
        num_generated = int(sampled is not None and sampled.is_finite)
        self._served.add(sequence.standing.tenant, fresh + num_generated)
        if sampled is None:
            self._tables.publish(sequence, chunk.end)
            return
        if not sampled.is_finite:
            self.finish(sequence, FinishReason.ERROR)
            return
        sequence.num_awaited_tokens -= 1
        sequence.token_ids.append(sampled.token_id)
        self._tables.publish(sequence, chunk.end)
        self._num_generated_tokens += 1
        self._forecast.generate()
        reason = self._finish_reason(sequence, sampled.token_id)
        if reason is not None:
            self.finish(sequence, reason)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_used_blocks=self._blocks.num_usable - self._blocks.num_free,
            num_usable_blocks=self._blocks.num_usable,
            num_preemptions=self._giving_way.num_preemptions,
            num_swaps=self._giving_way.num_swaps,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generated_tokens,
            prefix_cache_queries=self._num_queried_tokens,
            prefix_cache_hits=self._num_hit_tokens,
            queued_prompt_tokens=self._waiting.num_queued_tokens,
            expected_output_tokens=self._forecast.expected_tokens,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        running, waiting = list(self._running), list(self._waiting)
        self._tables.check_invariants(running, waiting)
        self._waiting.check_invariants()
        self._running.check_invariants()
        live = set(self._by_id.values())
        assert live == {*running, *waiting}, "a live sequence neither runs nor waits, or a dead one"
        assert len(running) <= self._limits.max_num_seqs, f"{len(running)} sequences run"

    def _admit(self, step: StepPlan, now_s: float) -> None:
        num_held_back = 0
        for sequence in self._candidates(now_s):
            if not step.num_free_tokens or num_held_back >= _MAX_HELD_BACK:
                return
            if self._tables.is_awaited_still(sequence):
                num_held_back += 1
                continue
            cached = self._tables.match(sequence)
            if self._tables.is_computed_by_another(sequence, len(cached)):
                num_held_back += 1
                continue
            if not self._has_place(sequence, cached, step, now_s):
                return
            self._start(sequence, cached)
            num_missing = sequence.num_missing_tokens
            num_tokens = min(num_missing, step.num_free_tokens)
            self._tables.grow(sequence, self._tables.num_lacking(sequence, num_tokens))
            step.put(sequence, num_tokens, is_sampled=num_tokens == num_missing)

    def _candidates(self, now_s: float) -> Iterator[Sequence]:
        """Who waits, best first."""
        first, self._first_in_line = self._first_in_line, None
        if first is not None and first.sequence_id in self._by_id:
            yield first
        order = self._waiting.in_order(now_s, self._served, self._tables.num_likely_cached)
        for sequence in order:
            if sequence is not first:
                yield sequence

    def _has_place(
        self, sequence: Sequence, cached: list[int], step: StepPlan, now_s: float
    ) -> bool:
        """A slot, and blocks for all its known tokens; made by displacing others, if need be."""
        missing = self._tables.num_blocks(sequence.num_known_tokens) - len(cached)
        num_blocks = missing + self._blocks.num_unreferenced(cached)
        victims = self._displaced(sequence, num_blocks, frozenset(cached), now_s)
        if victims is None:
            return False
        for victim in victims:
            step.drop(victim)
            self.preempt(victim)
        num_blocks = missing + self._blocks.num_unreferenced(cached)
        if victims and num_blocks > self._blocks.num_free:
            self._first_in_line = sequence  # else whom it displaced might return before it
        return num_blocks <= self._blocks.num_free  # or else soon: a step in flight holds them

    def _displaced(
        self, sequence: Sequence, num_blocks: int, kept: frozenset[int], now_s: float
    ) -> list[Sequence] | None:
        """Whom ``sequence`` may displace, as few as suffice.  None: even all would not."""
        victims: list[Sequence] = []
        num_free_blocks = self._tables.num_free_soon(kept)
        candidates = self._running.displaceable(
            sequence, self._served, self._limits.fair_share_slack_tokens, now_s
        )
        while (
            len(self._running) - len(victims) >= self._limits.max_num_seqs
            or num_free_blocks < num_blocks
        ):
            victim = next(candidates, None)
            if victim is None:
                return None
            victims.append(victim)
            num_free_blocks += self._blocks.num_sole(set(victim.block_table) - kept)
        return victims

    def _start(self, sequence: Sequence, cached: list[int]) -> None:
        """Hold its cached prefix and run it."""
        self._waiting.remove(sequence)
        self._tables.adopt(sequence, cached)
        num_hit = sequence.num_computed_tokens
        fresh = sequence.count_prompt(num_hit)
        sequence.num_cached_prompt_tokens += fresh
        self._num_prompt_tokens += fresh
        self._running.add(sequence)
        sequence.has_run = True
        self._giving_way.restore(sequence)
        num_restored = sequence.num_computed_tokens - num_hit  # neither found nor missed
        self._num_queried_tokens += sequence.num_known_tokens - num_restored
        self._num_hit_tokens += num_hit

    def _make_room(self, sequence: Sequence, num_blocks: int, step: StepPlan) -> bool:
        """Preempt from the last rank until it can have so many blocks more.

        False: that was the sequence itself, or the blocks are there as soon as a step retires.
        """
        while num_blocks > self._blocks.num_free and num_blocks > self._tables.num_free_soon():
            victim = self._running.last
            step.drop(victim)
            self.preempt(victim)
            if victim is sequence:
                return False
        if num_blocks > self._blocks.num_free:
            return False
        self._tables.grow(sequence, num_blocks)
        return True

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        params = sequence.params
        num_tokens = sequence.num_completion_tokens
        may_stop = num_tokens > params.min_tokens and not params.ignore_eos
        if may_stop and token_id in self._eos_token_ids:
            return FinishReason.STOP
        if num_tokens >= params.max_tokens:
            return FinishReason.LENGTH
        return None
