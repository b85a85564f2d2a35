"""Prefixes that one replica cannot serve alone: how many owners each has now.

One more whenever all of them have more than their share, one less after a calm while.  All others
have one owner and take no room.  And where each conversation of a shared prefix went last: what it
said is there and nowhere else, whoever owns its beginning.
"""

from collections import OrderedDict
from typing import Final

from gateway.prompt import Affinity

_MAX_PREFIXES: Final = 4_096  # the one that was pressed longest ago is forgotten
_MAX_USED: Final = 8_192  # more than are used in the seconds that count
_FADE, _LEAST_USES = 0.9, 0.5  # of uses, a tick: half are forgotten after seven
_MAX_CONVERSATIONS: Final = 65_536  # the one unheard of for longest is forgotten
_CALM_TICKS: Final = 20  # without pressure before an owner is let go


class HotPrefixes:
    def __init__(self) -> None:
        self._uses: dict[int, float] = {}  # by the key's point on the ring, fading
        self.owners: dict[int, int] = {}  # by the key's point on the ring; two or more
        self._calm: OrderedDict[int, int] = OrderedDict()  # ticks since it was pressed
        self._went: OrderedDict[int, str] = OrderedDict()  # by a conversation's hash

    def use(self, point: int) -> float:
        """One more request of it: how many there were lately, this one included."""
        uses = self._uses.get(point)
        if uses is None:
            if len(self._uses) < _MAX_USED:
                self._uses[point] = 1.0
            return 1.0
        self._uses[point] = uses = uses + 1.0
        return uses

    def num_owners(self, point: int) -> int:
        return self.owners.get(point, 1)

    def grow(self, point: int, num_owners: int) -> None:
        """It was pressed, and has so many owners from now on."""
        self.owners[point] = num_owners
        self.press(point)
        if len(self.owners) > _MAX_PREFIXES:
            oldest, _ = self._calm.popitem(last=False)
            del self.owners[oldest]

    def press(self, point: int) -> None:
        """Those that it has are wanted."""
        if point in self.owners:
            self._calm[point] = 0
            self._calm.move_to_end(point)

    def went(self, affinity: Affinity, replica: str) -> None:
        """Of a conversation that shares its key with others."""
        conversation = hash(affinity.conversation)
        self._went[conversation] = replica
        self._went.move_to_end(conversation)
        if len(self._went) > _MAX_CONVERSATIONS:
            self._went.popitem(last=False)

    def last_of(self, affinity: Affinity) -> str | None:
        """Where the conversation, which shares its key, went last; ``None``: it is new."""
        return self._went.get(hash(affinity.conversation))

    def tick(self) -> None:
        """About once a second."""
        faded = ((point, uses * _FADE) for point, uses in self._uses.items())
        self._uses = {point: uses for point, uses in faded if uses > _LEAST_USES}
        for point in list(self._calm):
            self._calm[point] += 1
            if self._calm[point] >= _CALM_TICKS:
                self._calm[point] = 0
                self.owners[point] -= 1
                if self.owners[point] == 1:
                    del self.owners[point], self._calm[point]
