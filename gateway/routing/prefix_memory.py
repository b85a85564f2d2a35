"""How much of a prompt a replica has probably cached: what this gateway sent there before.

A conversation keeps its affinity key as it grows, so the tokens of its last turn are the beginning
of its next.  And one that is new shares what its key says that many begin with.  How often that
came true is learned from what replicas report as cached of what was expected there: what a request
is the first to begin with nobody has promised it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gateway.prompt import SCOPE_BYTES, Affinity

_MAX_KEYS: Final = 16_384  # of conversations and of beginnings, by replica; the longest unheard of
_SHARE: Final = 0.02  # of the newest observation in what is learned
_FIRST_RATIO: Final = 0.9


@dataclass(frozen=True, slots=True)
class Promise:
    """What one request may find cached where it is sent."""

    affinity: Affinity
    replica: str
    num_bytes: int  # of its prompt
    known_tokens: float  # of others, or of its own last turn, as of when it was sent
    is_unproven: bool  # that others find what they begin with: none has ended there yet


class PrefixMemory:
    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._unproven: dict[tuple[int, str], int] = {}  # how many promise it, and have not ended
        self._kept_ratio = _FIRST_RATIO  # of what should be cached, what was

    def cached_tokens(self, affinity: Affinity, replica: str, num_prompt_tokens: float) -> float:
        return self._kept_ratio * self._known(affinity, replica, num_prompt_tokens)

    def send(self, affinity: Affinity, replica: str, *, num_bytes: int, prompt: float) -> Promise:
        """What others begin with, too, is prefilled before theirs.  ``prompt``: in tokens."""
        known, is_unproven = self._known(affinity, replica, prompt), False
        if affinity.key != affinity.conversation:
            place = hash(affinity.key), replica
            if place not in self._tokens:
                self._remember(affinity.key, replica, _num_shared(affinity, num_bytes, prompt))
                self._unproven[place] = 0
            is_unproven = place in self._unproven
            if is_unproven:
                self._unproven[place] += 1
        return Promise(affinity, replica, num_bytes, known, is_unproven)

    def processed(self, promise: Promise, *, prompt: int, cached: int, answer: int) -> None:
        """It has ended there; all in tokens, ``cached`` of the prompt's."""
        affinity, known = promise.affinity, min(promise.known_tokens, prompt)
        if known:
            self._kept_ratio += _SHARE * (min(1.0, cached / known) - self._kept_ratio)
        if affinity.key != affinity.conversation:
            num_shared = _num_shared(affinity, promise.num_bytes, prompt)
            self._remember(affinity.key, promise.replica, num_shared)
            self._unproven.pop((hash(affinity.key), promise.replica), None)
        self._remember(affinity.conversation, promise.replica, prompt + answer)

    def withdraw(self, promise: Promise) -> None:
        """It came to nothing there.  What another is still prefilled for, or has been, stays."""
        place = hash(promise.affinity.key), promise.replica
        if not promise.is_unproven or place not in self._unproven:
            return
        self._unproven[place] -= 1
        if not self._unproven[place]:
            del self._unproven[place], self._tokens[place]

    def _remember(self, key: bytes, replica: str, num_tokens: int) -> None:
        place = hash(key), replica
        self._tokens[place] = num_tokens
        self._tokens.move_to_end(place)
        if len(self._tokens) > _MAX_KEYS:
            forgotten, _ = self._tokens.popitem(last=False)
            self._unproven.pop(forgotten, None)

    def _known(self, affinity: Affinity, replica: str, num_prompt_tokens: float) -> float:
        tokens = self._tokens.get((hash(affinity.conversation), replica), 0)
        if not tokens and affinity.key != affinity.conversation:
            tokens = self._tokens.get((hash(affinity.key), replica), 0)
        return min(tokens, num_prompt_tokens)


def _num_shared(affinity: Affinity, num_bytes: int, prompt: float) -> int:
    """Tokens, by their share of the bytes."""
    return int(prompt * min(len(affinity.key) - SCOPE_BYTES, num_bytes) / max(1, num_bytes))
