"""What replicas have cached, and what the texts of prompts have to do with it."""

import logging
from collections import OrderedDict
from typing import Final

from contracts.blocks import (
    BlockChanges,
    BlockRemoved,
    BlocksCleared,
    BlockSnapshot,
    BlockStored,
    PromptStored,
)
from gateway.prompt import PromptText
from gateway.routing.block_index import Bit, BlockIndex, block_key
from gateway.routing.prompt_anchors import PromptAnchors
from gateway.routing.prompts_underway import PromptsUnderway

logger = logging.getLogger(__name__)

_MAX_EXPECTED: Final = 8_192  # requests whose prompts are being computed
_SWEPT_BLOCKS: Final = 2_000  # a tick: some milliseconds


class SequenceGap(Exception):
    """Something of the stream is missing: only a snapshot helps."""


class PrefixIndex:
    def __init__(self, max_blocks: int) -> None:
        self.blocks = BlockIndex(max_blocks)
        self.underway = PromptsUnderway()
        self.anchors = PromptAnchors(self.blocks, self.underway)
        self._num_refused_before = 0
        self._expected: OrderedDict[str, tuple[PromptText, Bit]] = OrderedDict()  # by request id

    def expect(self, request_id: str, text: PromptText, num_tokens: int, bit: Bit) -> None:
        """A request is on its way whose text this is, to whoever has the bit; 0: who tells none."""
        self._expected[request_id] = text, bit
        if bit:
            self.anchors.send(text, num_tokens, bit)
        if len(self._expected) > _MAX_EXPECTED:
            self._expected.popitem(last=False)

    def tick(self) -> None:
        """Ten times a second."""
        if self.blocks.num_refused > self._num_refused_before:
            extra = {"num_refused": self.blocks.num_refused, "num_blocks": len(self.blocks)}
            logger.warning("block index full, set it larger", extra=extra)
            self._num_refused_before = 2 * self.blocks.num_refused  # not every second
        self.blocks.sweep(_SWEPT_BLOCKS)
        self.underway.tick()

    def follower(self) -> "BlockFollower":
        return BlockFollower(self)

    def prompt_stored(self, prompt: PromptStored) -> None:
        """Of another gateway's request nothing is learned: its text is not known here."""
        expected = self._expected.pop(prompt.request_id, None)
        if expected is None:
            return
        text, bit = expected
        self.underway.arrived(text, bit)
        last, size = block_key(prompt.hash), prompt.block_size
        self.anchors.learn(text, prompt.num_tokens, last, size)

    def retire(self, bit: Bit) -> None:
        """Whose bit it was holds nothing any more."""
        self.blocks.retire(bit)
        self.underway.lost(bit)


class BlockFollower:
    """One replica's stream of events, from its snapshot to its end.  Close it when it is over."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._blocks = index.blocks
        self._seq: int | None = None  # None: before the snapshot
        self.bit: Bit = self._blocks.enter()

    def close(self) -> None:
        self._index.retire(self.bit)

    def take(self, message: BlockSnapshot | BlockChanges) -> None:
        """Raises SequenceGap."""
        if isinstance(message, BlockSnapshot):
            self._clear()
            self._seq = message.seq
            for block in message.blocks:
                self._store(block)
            return
        if self._seq is None or message.seq != self._seq + 1:
            raise SequenceGap(f"expected {self._seq} + 1, got {message.seq}")
        self._seq = message.seq
        for change in message.changes:
            match change:
                case BlockStored():
                    self._store(change)
                case BlockRemoved(hash=hash_):
                    self._blocks.remove(self.bit, block_key(hash_))
                case BlocksCleared():
                    self._clear()
                case PromptStored():
                    self._index.prompt_stored(change)

    def _store(self, block: BlockStored) -> None:
        self._blocks.store(self.bit, block_key(block.hash), block_key(block.parent_hash))

    def _clear(self) -> None:
        """The blocks that were there are no longer its; whoever asks for its bit asks anew."""
        self._index.retire(self.bit)
        self.bit = self._blocks.enter()
