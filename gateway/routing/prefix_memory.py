"""How much of a prompt a replica has probably cached: what this gateway sent there before.

A conversation keeps its affinity key as it grows, so the tokens of its last turn are the beginning
of its next.  How often that came true is learned from what replicas report as cached.
"""

from collections import OrderedDict
from typing import Final

_MAX_KEYS: Final = 16_384  # conversations; the longest unheard of is forgotten
_SHARE: Final = 0.02  # of the newest observation in what is learned
_FIRST_RATIO: Final = 0.9


class PrefixMemory:
    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[str, int]] = OrderedDict()  # replica, tokens
        self._kept_ratio = _FIRST_RATIO  # of what should be cached, what was

    def cached_tokens(self, affinity_key: bytes, replica: str, num_prompt_tokens: float) -> float:
        return self._kept_ratio * self._known(affinity_key, replica, num_prompt_tokens)

    def processed(
        self, affinity_key: bytes, replica: str, *, prompt: int, cached: int, answer: int
    ) -> None:
        """A request has ended there; all in tokens, ``cached`` of the prompt's."""
        known = self._known(affinity_key, replica, prompt)
        if known:
            self._kept_ratio += _SHARE * (min(1.0, cached / known) - self._kept_ratio)
        key = hash(affinity_key)
        self._last[key] = replica, prompt + answer
        self._last.move_to_end(key)
        if len(self._last) > _MAX_KEYS:
            self._last.popitem(last=False)

    def _known(self, affinity_key: bytes, replica: str, num_prompt_tokens: float) -> float:
        last = self._last.get(hash(affinity_key))
        if last is None or last[0] != replica:
            return 0
        return min(last[1], num_prompt_tokens)
