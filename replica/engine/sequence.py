"""One request inside the engine: its tokens, its blocks, and how far its KV is computed.

There are no phases.  A sequence is (num_computed_tokens, num_known_tokens); prefill, decode, a
resumed preemption and a prefix hit differ only in the gap between the two.  Both count steps that
were launched as if they were done: what they compute is computed by the time a later step looks,
and the token that one of them decides is known by then.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TypeAlias

from replica.engine.messages import FinishReason, SamplingParams, Usage
from replica.engine.prefix import Prefix


@dataclass(frozen=True, slots=True)
class Standing:
    """What its place among the others depends on."""

    arrival: int  # unique, rising
    tenant: str
    priority: int  # the least goes first, as in vLLM
    submitted_at_s: float


@dataclass(frozen=True, slots=True)
class SavedKv:
    """What a preempted sequence had computed, in host memory."""

    copies: SequenceOf[int]  # host blocks, of its first blocks
    num_tokens: int


# Copied whole when it grows, and else never changed: steps in flight go on reading the shorter one.
# An array, because copying one touches none of its items, and kernels take it as it is.
BlockTable: TypeAlias = "array[int]"


def block_table(blocks: Iterable[int] = ()) -> BlockTable:
    return array("i", blocks)


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: SequenceOf[int]
    num_resumed_tokens: int = 0  # the last of them: the beginning of the completion
    is_counted: bool = True  # False: it counts as another sequence's, which has the same


class Sequence:
    """Owned by the scheduler; nobody else changes it."""

    __slots__ = (
        "adapter",
        "awaited_digest",
        "block_table",
        "finish_reason",
        "has_run",
        "is_prompt_counted",
        "is_running",
        "latest_step",
        "num_awaited_tokens",
        "num_cached_prompt_tokens",
        "num_computed_tokens",
        "num_counted_prompt_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_releases",
        "num_resumed_tokens",
        "params",
        "prefixes",
        "saved",
        "sequence_id",
        "standing",
        "token_ids",
    )

    def __init__(
        self,
        *,
        sequence_id: int,
        standing: Standing,
        prompt: Prompt,
        params: SamplingParams,
        root: Prefix,
        adapter: int | None = None,
    ) -> None:
        self.adapter = adapter
        self.is_prompt_counted = prompt.is_counted
        self.sequence_id = sequence_id
        self.standing = standing
        self.awaited_digest: bytes | None = None  # of a block that somebody else computes for it
        self.token_ids = array("q", prompt.token_ids)  # no list: the collector would walk it
        self.num_resumed_tokens = prompt.num_resumed_tokens
        self.num_prompt_tokens = len(self.token_ids) - prompt.num_resumed_tokens
        self.params = params
        self.is_running = False
        self.latest_step = 0  # number of the last one that computes for it
        self.has_run = False  # it has owned blocks, and may have had to give them back
        self.num_computed_tokens = 0
        self.num_awaited_tokens = 0  # being decided by steps in flight
        self.num_published_blocks = 0
        self.block_table = block_table()
        self.num_releases = 0  # how often it gave its blocks back
        self.saved: SavedKv | None = None
        self.prefixes: list[Prefix] = [root]  # then one per full block, lazily extended
        self.num_counted_prompt_tokens = 0  # highest ever computed: a recompute counts nothing
        self.num_cached_prompt_tokens = 0
        self.finish_reason: FinishReason | None = None

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) + self.num_awaited_tokens

    @property
    def num_missing_tokens(self) -> int:
        """To be computed; none, when the last token it may have is being decided."""
        num_awaited = self.num_awaited_tokens
        num_known = len(self.token_ids) + num_awaited
        if num_awaited and num_known >= self.num_prompt_tokens + self.params.max_tokens:
            return 0
        return num_known - self.num_computed_tokens

    @property
    def num_queued_tokens(self) -> int:
        """To be computed when it waits no more, unless they are found in the cache."""
        return len(self.token_ids) - (0 if self.saved is None else self.saved.num_tokens)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def usage(self) -> Usage:
        """What was processed here: resumed tokens were read like a prompt."""
        return Usage(
            prompt_tokens=self.num_counted_prompt_tokens,
            cached_prompt_tokens=self.num_cached_prompt_tokens,
            completion_tokens=self.num_completion_tokens - self.num_resumed_tokens,
        )

    def block_prefix(self, index: int, block_size: int) -> Prefix:
        """Of one block, which must be full: what a step asks for must not grow with the context."""
        while len(self.prefixes) <= index + 1:
            start = (len(self.prefixes) - 1) * block_size
            tokens = self.token_ids[start : start + block_size]
            self.prefixes.append(self.prefixes[-1].child(tokens))
        return self.prefixes[index + 1]

    def count_prompt(self, num_computed_tokens: int) -> int:
        """How many prompt tokens were computed up to there for the first time, if they count."""
        if not self.is_prompt_counted:
            return 0
        reached = min(num_computed_tokens, self.num_prompt_tokens + self.num_resumed_tokens)
        fresh = max(0, reached - self.num_counted_prompt_tokens)
        self.num_counted_prompt_tokens += fresh
        return fresh
