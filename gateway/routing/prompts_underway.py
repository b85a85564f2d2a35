"""Beginnings of prompts that were sent to a replica, until it tells that it has them.

What many ask for at once is computed where the first of them went: the next ones find it there, or
wait for less than it takes elsewhere.  Of a request that came to nothing no replica tells; what is
not told is forgotten after some seconds, or sooner where there is too much of it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.prompt import PromptText
from gateway.routing.block_index import Bit
from gateway.routing.text_chain import BOUNDARIES_BYTES

_KEPT_TICKS: Final = 200  # of a tenth of a second
_MAX_LINKS: Final = 65_536  # some 15 MB
_NOWHERE: Final = (0, 0)


class PromptsUnderway:
    def __init__(self) -> None:
        # By link of a text's chain: bits of where it was sent, and its tokens up to there.
        self.links: dict[int, tuple[Bit, int]] = {}
        self._sent: deque[tuple[int, int]] = deque()  # in which tick which link was
        self._latest_of: dict[int, int] = {}  # by link: in which tick it was last
        self._num_ticks = 0

    def send(
        self, text: PromptText, num_tokens: int, bit: Bit, is_held: Callable[[int], bool]
    ) -> None:
        """``is_held``: whether the replica is known to have the text up to a link."""
        for place in range(len(text.chain) - 1, -1, -1):
            link = text.chain[place]
            bits, _ = self.links.get(link, _NOWHERE)
            if bits & bit or is_held(link):
                break  # and all before it
            tokens = num_tokens * BOUNDARIES_BYTES[place] // text.num_bytes
            self.links[link] = (bits | bit, tokens)
            self._sent.append((self._num_ticks, link))
            self._latest_of[link] = self._num_ticks
        while len(self._sent) > _MAX_LINKS:
            self._forget_first()

    def arrived(self, text: PromptText, bit: Bit) -> None:
        """There the replica's own events are to be believed from now on.

        ``bit``: 0 where the replica told nothing yet when the prompt was sent.
        """
        for link in text.chain:
            self._remove(link, bit)

    def lost(self, bit: Bit) -> None:
        """It means nobody any more, or somebody else."""
        for link in list(self.links):
            self._remove(link, bit)

    def tick(self) -> None:
        """Ten times a second."""
        self._num_ticks += 1
        while self._sent and self._sent[0][0] <= self._num_ticks - _KEPT_TICKS:
            self._forget_first()

    def _forget_first(self) -> None:
        tick, link = self._sent.popleft()
        if self._latest_of.get(link) == tick:  # else it was sent again
            del self._latest_of[link]
            self.links.pop(link, None)

    def _remove(self, link: int, bit: Bit) -> None:
        bits, tokens = self.links.get(link, _NOWHERE)
        if not bits & bit:
            return
        if bits == bit:
            del self.links[link]
        else:
            self.links[link] = (bits & ~bit, tokens)
