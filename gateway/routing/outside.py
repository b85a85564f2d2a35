"""What can be known of a member of another owner: how long its first tokens take.

It tells no load, and has no prefix that we could count on.  What others have it do shows in the
time until it answers; what we have it do, we know.
"""

from typing import Final

_FADE: Final = 0.9  # of what is remembered, at each answer
_FORGOTTEN_S: Final = 60.0  # what was slow a minute ago must be tried to be known


class Outside:
    def __init__(self, weight: float) -> None:
        """``weight``: how much of one of our own replicas it counts as; more than 0."""
        self.weight = weight
        self._sum_s = self._num = 0.0
        self._learned_s = float("-inf")

    def note_ttft(self, ttft_s: float, now_s: float) -> None:
        if now_s - self._learned_s > _FORGOTTEN_S:
            self._sum_s = self._num = 0.0
        self._sum_s = _FADE * self._sum_s + ttft_s
        self._num = _FADE * self._num + 1.0
        self._learned_s = now_s

    def ttft_s(self, now_s: float) -> float:
        """The mean of late; 0: not known now, and worth a try."""
        if now_s - self._learned_s > _FORGOTTEN_S:
            return 0.0
        return self._sum_s / self._num

    def counted(self, num_tokens: float) -> int:
        """As one of our own replicas would have to do."""
        return round(num_tokens / self.weight)
