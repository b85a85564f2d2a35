"""One engine of another make in the index of blocks, by its events and its own tokenizer.

Such an engine numbers its blocks as it likes (vLLM's hashes begin with a secret of the process), so
blocks are named here by what is in them: a chain of hashes over their tokens and the salt.  Nor
does it tell which request a block belongs to; but it tells the tokens of any prompt that it is
asked for, and these say which blocks that prompt will have.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

from gateway.prompt import PromptText
from gateway.routing.block_index import Bit
from gateway.routing.engine_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash
from gateway.routing.prefix_index import PrefixIndex, SequenceGap

_KEY_MASK: Final = (1 << 64) - 1
_MAX_EXPECTED: Final = 1_024  # prompts whose blocks are being computed
_BLOCKS_A_TURN: Final = 512  # under a millisecond, of the 90 ms that a million tokens take
_GPU: Final = (None, "GPU")  # what is elsewhere must be fetched first
_ROOT: Final = hash(b"no block before") & _KEY_MASK  # another in each process: nobody aims at keys


class EngineBlocks:
    """From one connection's first message to its end.  Close it when it is over."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._blocks = index.blocks
        self._keys: dict[Hash, int] = {}
        self._expected: OrderedDict[int, tuple[PromptText, int]] = OrderedDict()  # by last block
        self._block_size = 0  # until the first block is told
        self.next_seq: int | None = None  # None: any
        self.bit: Bit = self._blocks.enter()

    def close(self) -> None:
        self._index.retire(self.bit)

    def take(self, seq: int, events: Sequence[Event]) -> None:
        """Raises SequenceGap, also where numbers begin anew: so does the engine."""
        if self.next_seq is not None and seq != self.next_seq:
            raise SequenceGap(f"expected {self.next_seq}, got {seq}")
        self.next_seq = seq + 1
        for event in events:
            match event:
                case BlockStored(medium=medium, group_idx=group) if medium in _GPU and not group:
                    self._store(event)
                case BlockRemoved(medium=medium, group_idx=group) if medium in _GPU and not group:
                    self._remove(event)
                case AllBlocksCleared():
                    self._clear()

    async def expect(self, text: PromptText, token_ids: Sequence[int], salt: str) -> None:
        """A prompt that is on its way there, in the engine's tokens.

        A long one in several turns of the event loop.
        """
        size = self._block_size
        if size == 0 or len(token_ids) < size:
            return
        for extra_keys in ([salt], None):  # older versions do not tell salts
            key = await _last_key(token_ids, size, extra_keys)
            if self._blocks.holders(key) & self.bit:
                self._learn(text, len(token_ids), key)
                return
            self._expected[key] = (text, len(token_ids))
        while len(self._expected) > _MAX_EXPECTED:
            self._expected.popitem(last=False)

    def _learn(self, text: PromptText, num_tokens: int, last: int) -> None:
        self._index.underway.arrived(text, self.bit)
        self._index.anchors.learn(text, num_tokens, last, self._block_size)

    def _store(self, event: BlockStored) -> None:
        size = self._block_size = event.block_size
        parent = event.parent_block_hash
        link = _ROOT if parent is None else self._keys.get(parent)
        if link is None:
            return  # it goes on behind what was stored before anybody listened
        extra_keys = chain(event.extra_keys or (), repeat(None))
        for place, (hash_, extra) in enumerate(zip(event.block_hashes, extra_keys, strict=False)):
            before = link
            link = _link(before, event.token_ids[place * size : (place + 1) * size], extra)
            self._keys[hash_] = link
            self._blocks.store(self.bit, link, before)
            expected = self._expected.pop(link, None)
            if expected is not None:
                self._learn(*expected, link)

    def _remove(self, event: BlockRemoved) -> None:
        for hash_ in event.block_hashes:
            key = self._keys.pop(hash_, None)
            if key is not None:
                self._blocks.remove(self.bit, key)

    def _clear(self) -> None:
        """The blocks that were there are no longer its; whoever asks for its bit asks anew."""
        self._keys.clear()
        self._index.retire(self.bit)
        self.bit = self._blocks.enter()


async def _last_key(
    token_ids: Sequence[int], size: int, extra_keys: Sequence[object] | None
) -> int:
    """Of the whole blocks.  ``extra_keys``: of the first."""
    key = _ROOT
    for place in range(len(token_ids) // size):
        key = _link(key, token_ids[place * size : (place + 1) * size], extra_keys)
        extra_keys = None
        if (place + 1) % _BLOCKS_A_TURN == 0:
            await asyncio.sleep(0)
    return key


def _link(before: int, token_ids: Sequence[int], extra_keys: Sequence[object] | None) -> int:
    """``extra_keys``: what tells blocks of the same tokens apart, such as salts and images."""
    if extra_keys:
        before = hash((before, repr(list(extra_keys))))
    return hash((before, *token_ids)) & _KEY_MASK
