"""What one step computes, and what it decides.

Structs, not dataclasses: there is one per sequence and step, and these are made four times as fast
and never looked at by the garbage collector.
"""

from typing import Final

import msgspec

from replica.engine.messages import TokenLogprobs
from replica.engine.sequence import Sequence


class ScheduledChunk(msgspec.Struct, frozen=True, gc=False):
    """Compute the tokens of a sequence from position ``start`` to before ``end``."""

    sequence: Sequence
    start: int
    end: int
    is_sampled: bool  # it reaches the last known token: its last row decides the next one
    num_releases: int  # the sequence's at that time

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def is_decoding(self) -> bool:
        """It computes one token that was generated, and no end of a prompt."""
        sequence = self.sequence
        num_read = sequence.num_prompt_tokens + sequence.num_resumed_tokens
        return self.num_tokens == 1 and self.start >= num_read

    @property
    def is_void(self) -> bool:
        """The sequence has given its blocks up since: what came out concerns nobody any more."""
        return self.num_releases != self.sequence.num_releases


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    is_finite: bool  # False: the numbers behind it were not, and the sequence must fail
    logprobs: TokenLogprobs | None = None  # where the sequence wants them


NOT_FINITE: Final = SampledToken(token_id=0, is_finite=False)


class StepPlan:
    """The chunks of one step and what is left of its budget."""

    def __init__(self, max_num_tokens: int, enough_prompt_tokens: int | None = None) -> None:
        """Once a prompt ends in it, it is full with so many of prompts; None: with any."""
        self._num_left = max_num_tokens
        self._enough_prompt_tokens = enough_prompt_tokens
        self._num_prompt_tokens = 0
        self._num_ends = 0  # of prompts
        self._chunks: dict[int, ScheduledChunk] = {}

    @property
    def num_free_tokens(self) -> int:
        if self._enough_prompt_tokens is None or not self._num_ends:
            return self._num_left
        num_lacking = self._enough_prompt_tokens - self._num_prompt_tokens
        return max(0, min(self._num_left, num_lacking))

    def put(self, sequence: Sequence, num_tokens: int, *, is_sampled: bool) -> None:
        start = sequence.num_computed_tokens
        self._chunks[sequence.sequence_id] = chunk = ScheduledChunk(
            sequence, start, start + num_tokens, is_sampled, sequence.num_releases
        )
        self._num_left -= num_tokens
        if not chunk.is_decoding:
            self._num_prompt_tokens += num_tokens
            self._num_ends += is_sampled

    def drop(self, sequence: Sequence) -> None:
        chunk = self._chunks.pop(sequence.sequence_id, None)
        if chunk is None:
            return
        self._num_left += chunk.num_tokens
        if not chunk.is_decoding:
            self._num_prompt_tokens -= chunk.num_tokens
            self._num_ends -= chunk.is_sampled

    def chunks(self) -> list[ScheduledChunk]:
        return list(self._chunks.values())
