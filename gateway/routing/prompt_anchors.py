"""Where in the engine's chain of blocks the beginnings of texts end.

A replica tells which block a request's prompt ended with, and how many tokens it had.  So the
gateway, which has no tokenizer, learns for each boundary of that prompt's text the block that ends
there: by the share of the bytes, rounded down.  Of the next prompt that begins alike it then knows
who holds how many of its tokens, to within a boundary.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.prompt import PromptText
from gateway.routing.block_index import Bit, BlockIndex
from gateway.routing.prompts_underway import PromptsUnderway
from gateway.routing.text_chain import BOUNDARIES_BYTES

_MAX_ANCHORS: Final = 131_072  # some 30 MB; the longest unheard of is forgotten

_NOWHERE: Final = (0, 0)

Anchor = tuple[int, int]  # a block's key, and the tokens up to its end


class Found(msgspec.Struct, frozen=True):
    known_tokens: int  # of the text, that some replica was asked for by this gateway once
    holders: Sequence[tuple[int, int]]  # bits, and how many tokens these hold or will; most first


class PromptAnchors:
    def __init__(self, blocks: BlockIndex, underway: PromptsUnderway) -> None:
        self._blocks = blocks
        self._underway = underway
        self._anchors: OrderedDict[int, Anchor] = OrderedDict()  # by link of a text's chain

    def learn(self, text: PromptText, num_tokens: int, last_block: int, block_size: int) -> None:
        """``last_block``: of the prompt's whole blocks."""
        key: int | None = last_block
        depth = num_tokens // block_size
        for place in range(len(text.chain) - 1, -1, -1):
            tokens = num_tokens * BOUNDARIES_BYTES[place] // text.num_bytes
            wanted = min(depth, tokens // block_size)
            if wanted == 0:
                return
            while depth > wanted:
                key = None if key is None else self._blocks.parent(key)
                depth -= 1
            if key is None or self._put(text.chain[place], (key, depth * block_size)):
                return

    def send(self, text: PromptText, num_tokens: int, bit: Bit) -> None:
        """It is on its way to whoever has the bit."""

        def is_held(link: int) -> bool:
            anchor = self._anchors.get(link)
            return anchor is not None and bool(self._blocks.holders(anchor[0]) & bit)

        self._underway.send(text, num_tokens, bit, is_held)

    def find(self, chain: Sequence[int], wanted: int) -> Found:
        """Of the bits that are ``wanted``."""
        holders: list[tuple[int, int]] = []
        known_tokens = 0
        get, holders_of, sent = self._anchors.get, self._blocks.holders, self._underway.links.get
        first = get(chain[0]) if chain else None
        if first is not None:
            # Whoever holds more of it, or will, holds its beginning, or will.
            wanted &= holders_of(first[0]) | sent(chain[0], _NOWHERE)[0]
        for link in reversed(chain):
            bits, tokens = sent(link, _NOWHERE)
            anchor = get(link)
            if anchor is not None:
                key, tokens = anchor
                bits |= holders_of(key)
            if tokens > known_tokens:
                known_tokens = tokens
            bits &= wanted
            if bits:
                holders.append((bits, tokens))
                wanted &= ~bits
            if not wanted:
                break
        return Found(known_tokens, holders)

    def _put(self, link: int, anchor: Anchor) -> bool:
        """Whether it was known before."""
        if self._anchors.get(link) == anchor:
            self._anchors.move_to_end(link)
            return True
        self._anchors[link] = anchor
        self._anchors.move_to_end(link)
        if len(self._anchors) > _MAX_ANCHORS:
            self._anchors.popitem(last=False)
        return False
