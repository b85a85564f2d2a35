"""How many pods one query asks of, learned from what was too much (pure).

Halved at a refusal, since a query's cost grows with its pods; but a refusal may also be a store
that is away for a moment, so there is a floor, and good looks double it again.
"""

from typing import Final

MOST_PODS: Final = 100  # of them an answer is a megabyte
FEWEST_PODS: Final = 10  # refused for so few: a thousand queries would not be answered either
GOOD_LOOKS: Final = 12  # until more is tried: two minutes at the usual period


class PartSize:
    def __init__(self) -> None:
        self._num_pods = MOST_PODS
        self._num_good = 0

    @property
    def num_pods(self) -> int:
        return self._num_pods

    def note_too_much(self, num_asked: int) -> bool:
        """False: so few are not asked for in parts."""
        self._num_good = 0
        self._num_pods = max(FEWEST_PODS, min(self._num_pods, (num_asked + 1) // 2))
        return num_asked > self._num_pods

    def note_good_look(self) -> None:
        """Everything that was asked for was answered."""
        self._num_good += 1
        if self._num_good >= GOOD_LOOKS:
            self._num_good = 0
            self._num_pods = min(MOST_PODS, 2 * self._num_pods)
