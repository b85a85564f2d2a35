"""The engine's prefix cache as the HTTP process knows it, and those who follow it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from contracts import blocks as contract
from replica.engine.messages import (
    BlockChange,
    BlockRemoved,
    BlocksCleared,
    BlockStored,
    PromptComputed,
)

_PART_BLOCKS: Final = 2_000  # some milliseconds of whoever reads them
_MAX_PENDING: Final = 1_000  # steps: a reader that far behind had better begin anew


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """A snapshot in parts, then encoded changes; None: the stream is over."""

    snapshot: Iterator[bytes]  # encoded as they are asked for: of megabytes each costs its time
    changes: "asyncio.Queue[bytes | None]" = field(
        default_factory=lambda: asyncio.Queue(_MAX_PENDING + 1)
    )

    def put(self, payload: bytes) -> bool:
        """False: the reader has fallen behind, and is told so."""
        if self.changes.qsize() < _MAX_PENDING:
            self.changes.put_nowait(payload)
            return True
        self.changes.put_nowait(None)
        return False


class BlockMirror:
    def __init__(self) -> None:
        self._seq = 0
        self._blocks: dict[bytes, contract.BlockStored] = {}
        self._subscriptions: set[Subscription] = set()

    def apply(self, changes: Sequence[BlockChange]) -> None:
        """Of one step.  Nothing: nobody hears of it."""
        if not changes:
            return
        self._tell(tuple(self._take(change) for change in changes))

    def prompt_stored(self, prompt: PromptComputed, request_id: str) -> None:
        """Its blocks have been applied.  A snapshot does not hold it."""
        if self._subscriptions:
            stored = contract.PromptStored(
                request_id=request_id,
                hash=prompt.digest.hex(),
                num_tokens=prompt.num_tokens,
                block_size=prompt.block_size,
            )
            self._tell((stored,))

    def _tell(self, changes: tuple[contract.Change, ...]) -> None:
        self._seq += 1
        if self._subscriptions:
            payload = msgspec.json.encode(contract.BlockChanges(seq=self._seq, changes=changes))
            self._subscriptions = {s for s in self._subscriptions if s.put(payload)}

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        subscription = Subscription(_parts(self._seq, tuple(self._blocks.values())))
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Nothing will change any more."""
        for subscription in self._subscriptions:
            subscription.changes.put_nowait(None)
        self._subscriptions = set()

    def _take(
        self, change: BlockChange
    ) -> contract.BlockStored | contract.BlockRemoved | contract.BlocksCleared:
        match change:
            case BlockStored(digest=digest, parent_digest=parent, num_tokens=num_tokens):
                stored = contract.BlockStored(
                    hash=digest.hex(), parent_hash=parent.hex(), num_tokens=num_tokens
                )
                self._blocks[digest] = stored
                return stored
            case BlockRemoved(digest=digest):
                del self._blocks[digest]
                return contract.BlockRemoved(hash=digest.hex())
            case BlocksCleared():
                self._blocks.clear()
                return contract.BlocksCleared()


def _parts(seq: int, blocks: tuple[contract.BlockStored, ...]) -> Iterator[bytes]:
    """A snapshot of the first blocks as of some steps ago, in each of which more were stored."""
    num_more = min(seq, max(0, -(-len(blocks) // _PART_BLOCKS) - 1))
    size = -(-len(blocks) // (num_more + 1))
    first = contract.BlockSnapshot(seq=seq - num_more, blocks=blocks[:size])
    yield msgspec.json.encode(first)
    for part in range(1, num_more + 1):
        more = blocks[part * size : (part + 1) * size]
        changes = contract.BlockChanges(seq=seq - num_more + part, changes=more)
        yield msgspec.json.encode(changes)
