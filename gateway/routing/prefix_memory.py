"""How much of a prompt a replica has probably cached: what this gateway sent there before.

A conversation keeps its affinity key as it grows, so the tokens of its last turn are the beginning
of its next.  And one that is new shares what its key says that many begin with.  How much of that
is found is learned from what each replica reports, of either by itself (some report nothing, or
cache nothing): what a request is the first to begin with nobody has promised it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from gateway.prompt import SCOPE_BYTES, Affinity

T = TypeVar("T")
K = TypeVar("K")
_Place = tuple[int, str]  # a key's hash, and a replica

_MAX_KEYS: Final = 16_384  # of conversations and of beginnings, by replica; the longest unheard of
_SHARE: Final = 0.1  # of the newest observation in what is missing
_FOUND_SHARE: Final = 0.02  # and in how often it is found at all
_FIRST_MISSING_TOKENS: Final = 16.0  # a block: only whole ones are found


@dataclass(frozen=True, slots=True)
class Promise:
    """What one request may find cached where it is sent."""

    affinity: Affinity
    replica: str
    num_bytes: int  # of its prompt
    known_tokens: float  # of others, or of its own last turn, as of when it was sent
    is_own_turn: bool
    is_unproven: bool  # that others find what they begin with: none has ended there yet


class _Keeping:
    """What is found of what should be: a beginning is cached but for some tokens, or not at all.

    The mean of the two would be wrong for every single prompt.
    """

    def __init__(self) -> None:
        self._found_ratio = 1.0
        self._missing_tokens = _FIRST_MISSING_TOKENS

    def expected_tokens(self, known: float) -> float:
        return max(0.0, known - self._missing_tokens) if self._found_ratio > 0.5 else 0.0

    def learn(self, known: float, cached: float) -> None:
        is_found = cached > known / 2
        self._found_ratio += _FOUND_SHARE * (is_found - self._found_ratio)
        if is_found:  # it may be more than was known
            self._missing_tokens += _SHARE * (known - cached - self._missing_tokens)


class _Turn(NamedTuple):
    """A conversation's last."""

    prompt: int
    answer: int
    num_bytes: int  # of the prompt


class PrefixMemory:
    def __init__(self) -> None:
        self._turns: OrderedDict[_Place, _Turn] = OrderedDict()
        self._shared: OrderedDict[_Place, int] = OrderedDict()  # tokens, by key
        self._unproven: dict[_Place, int] = {}  # how many promise it, and have not ended
        self._kept: OrderedDict[tuple[str, bool], _Keeping] = OrderedDict()  # replica, own turns

    def prompt_tokens(
        self, affinity: Affinity, replica: str, *, num_bytes: int, prompt: float
    ) -> float:
        """What ``prompt``, an estimate, is where the tokens of its beginning are known."""
        turn = self._turns.get((hash(affinity.conversation), replica))
        if turn is not None:
            known, num_known_bytes = turn.prompt, turn.num_bytes
        else:
            known = self._shared.get((hash(affinity.key), replica), 0)
            num_known_bytes = len(affinity.key) - SCOPE_BYTES
        if not known or num_bytes < num_known_bytes:
            return prompt
        return known + (num_bytes - num_known_bytes) * prompt / max(1, num_bytes)

    def cached_tokens(self, affinity: Affinity, replica: str, prompt: float) -> float:
        known, is_own_turn = self._known(affinity, replica, prompt)
        return (
            min(prompt, self._keeping(replica, is_own_turn).expected_tokens(known))
            if known
            else 0.0
        )

    def send(self, affinity: Affinity, replica: str, *, num_bytes: int, prompt: float) -> Promise:
        """What others begin with, too, is prefilled before theirs.  ``prompt``: in tokens."""
        (known, is_own_turn), is_unproven = self._known(affinity, replica, prompt), False
        if affinity.key != affinity.conversation:
            place = hash(affinity.key), replica
            if place not in self._shared:
                self._remember_shared(place, _num_shared(affinity, num_bytes, prompt))
                self._unproven[place] = 0
            is_unproven = place in self._unproven
            if is_unproven:
                self._unproven[place] += 1
        return Promise(affinity, replica, num_bytes, known, is_own_turn, is_unproven)

    def processed(self, promise: Promise, *, prompt: int, cached: int, answer: int) -> None:
        """It has ended there; all in tokens, ``cached`` of the prompt's."""
        affinity, known = promise.affinity, min(promise.known_tokens, prompt)
        if known:
            self._keeping(promise.replica, promise.is_own_turn).learn(known, cached)
        if affinity.key != affinity.conversation:
            place = hash(affinity.key), promise.replica
            self._remember_shared(place, _num_shared(affinity, promise.num_bytes, prompt))
            self._unproven.pop(place, None)
        turn = _Turn(prompt, answer, promise.num_bytes)
        _remember(self._turns, (hash(affinity.conversation), promise.replica), turn)

    def withdraw(self, promise: Promise) -> None:
        """It came to nothing there.  What another is still prefilled for, or has been, stays."""
        place = hash(promise.affinity.key), promise.replica
        if not promise.is_unproven or place not in self._unproven:
            return
        self._unproven[place] -= 1
        if not self._unproven[place]:
            del self._unproven[place], self._shared[place]

    def _keeping(self, replica: str, is_own_turn: bool) -> _Keeping:
        place = replica, is_own_turn
        if place not in self._kept:
            _remember(self._kept, place, _Keeping())
        return self._kept[place]

    def _remember_shared(self, place: _Place, num_tokens: int) -> None:
        forgotten = _remember(self._shared, place, num_tokens)
        if forgotten is not None:
            self._unproven.pop(forgotten, None)

    def _known(self, affinity: Affinity, replica: str, prompt: float) -> tuple[float, bool]:
        """And whether that is its own last turn."""
        turn = self._turns.get((hash(affinity.conversation), replica))
        if turn is not None:
            return min(turn.prompt + turn.answer, prompt), True
        if affinity.key == affinity.conversation:
            return 0.0, False
        return min(self._shared.get((hash(affinity.key), replica), 0), prompt), False


def _remember(known: OrderedDict[K, T], place: K, what: T) -> K | None:
    """Whose place it takes."""
    known[place] = what
    known.move_to_end(place)
    return known.popitem(last=False)[0] if len(known) > _MAX_KEYS else None


def _num_shared(affinity: Affinity, num_bytes: int, prompt: float) -> int:
    """Tokens, by their share of the bytes."""
    return int(prompt * min(len(affinity.key) - SCOPE_BYTES, num_bytes) / max(1, num_bytes))
