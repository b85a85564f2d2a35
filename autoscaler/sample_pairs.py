"""Two samples of each teller, one after the other: what grew between them, in what time (pure).

Who misses a look has a pair over the time that it missed; who tells the same sample again has the
pair that it had.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar


class Taken(Protocol):
    @property
    def taken_at_s(self) -> float | None:
        """By the clock of who took it; ``None``: at the look."""


S = TypeVar("S", bound=Taken)


@dataclass(frozen=True, slots=True)
class Pair(Generic[S]):
    before: S
    after: S
    elapsed_s: float
    is_news: bool = True  # this look's, not one before's


@dataclass(frozen=True, slots=True)
class _Known(Generic[S]):
    sample: S
    taken_at_s: float
    looked_at_s: float
    pair: Pair[S] | None


class SamplePairs(Generic[S]):
    def __init__(self, is_later: Callable[[S, S], bool]) -> None:
        """``is_later(before, after)``: of the same life; counters that went down began anew."""
        self._is_later = is_later
        self._known: dict[str, _Known[S]] = {}

    def note(self, samples: Mapping[str, S], now_s: float) -> Mapping[str, Pair[S]]:
        """By name, of those of whom there is one."""
        found = {}
        for name, sample in samples.items():
            taken_at_s = now_s if sample.taken_at_s is None else sample.taken_at_s
            known = self._known.get(name)
            pair = None if known is None else self._pair(known, sample, taken_at_s)
            if pair is not None:
                found[name] = pair
            if known is None or taken_at_s != known.taken_at_s:
                self._known[name] = _Known(sample, taken_at_s, now_s, pair)
        return found

    def forget(self, is_gone: Callable[[str, float], bool]) -> None:
        """``is_gone``: by its name, and by the time of the look at its last sample."""
        gone = [name for name, known in self._known.items() if is_gone(name, known.looked_at_s)]
        for name in gone:
            del self._known[name]

    def _pair(self, known: _Known[S], sample: S, taken_at_s: float) -> Pair[S] | None:
        if taken_at_s == known.taken_at_s:
            return None if known.pair is None else replace(known.pair, is_news=False)
        if taken_at_s < known.taken_at_s or not self._is_later(known.sample, sample):
            return None
        return Pair(known.sample, sample, taken_at_s - known.taken_at_s)
