"""How much work a request is: a mean over what was seen, the older the less (pure).

Work done over requests done.  One that is met while it runs has half of its work behind it, so
those that have begun count half, and those that end the other half: answers that grow are seen as
they grow, not when they end.  The looks of the last minute are kept beside the long memory: where
all since one of them are far outside chance, the mean changed about then (a generalised likelihood
ratio's way to find when).  What was before is forgotten when the change is a minute old; until then
it may turn out to be chance, and what was known is known again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from autoscaler.pool import Demand

LASTING_TIME_S: Final = 300.0  # lengths change slower than rates
RECENT_TIME_S: Final = 60.0
SHORTEST_TIME_S: Final = 30.0  # in less, requests have begun that have not had time to work
SURPRISE_SIGMAS: Final = 4.0  # as of rates
_FEWEST: Final = 0.5  # requests that work is of: what runs for hours has begun, once


@dataclass(frozen=True, slots=True)
class Done:
    work_tokens: float = 0.0
    num_requests: float = 0.0

    @property
    def mean_tokens(self) -> float | None:
        return self.work_tokens / max(_FEWEST, self.num_requests) if self.num_requests > 0 else None

    def and_of(self, look: Demand) -> "Done":
        return Done(self.work_tokens + look.work_tokens, self.num_requests + look.num_done)

    def faded(self, interval_s: float) -> "Done":
        kept = math.exp(-interval_s / LASTING_TIME_S)
        return Done(kept * self.work_tokens, kept * self.num_requests)


@dataclass(frozen=True, slots=True)
class Change:
    """One that is not a minute ago, and may be chance after all."""

    since: Done
    before: Done  # what was known then


@dataclass(frozen=True, slots=True)
class Lengths:
    recent: tuple[Demand, ...] = ()  # the newest first; none from before a change
    lasting: Done = Done()
    change: Change | None = None

    @property
    def mean_tokens(self) -> float | None:
        """``None``: nothing has been done yet."""
        return (self.lasting if self.change is None else self.change.since).mean_tokens


def next_lengths(lengths: Lengths, demand: Demand) -> Lengths:
    """A look in which nothing was done says nothing, and nothing grows old in it.

    Work counts also where nothing begins or ends (the middle of long answers), and a preemption
    takes back what its beginning has counted.
    """
    if demand.work_tokens <= 0 and demand.num_done <= 0:
        return lengths
    recent = _newest((demand, *lengths.recent))
    lasting = lengths.lasting.faded(demand.interval_s).and_of(demand)
    before = lasting if lengths.change is None else lengths.change.before
    changed = _since_change(recent, before)
    if not changed:
        return Lengths(recent, lasting)
    since = reduce(Done.and_of, changed, Done())
    is_young = sum(look.interval_s for look in changed) < RECENT_TIME_S
    return Lengths(changed, lasting, Change(since, before)) if is_young else Lengths(changed, since)


def _newest(looks: tuple[Demand, ...]) -> tuple[Demand, ...]:
    age_s = 0.0
    for number, look in enumerate(looks, start=1):
        age_s += look.interval_s
        if age_s >= RECENT_TIME_S:
            return looks[:number]
    return looks


def _since_change(recent: tuple[Demand, ...], before: Done) -> tuple[Demand, ...]:
    """Of the newest looks so many as are farthest from what was known; none: it is chance.

    When it changed is better known with every look after it.
    """
    excesses = [_excess(look, before) for look in recent]
    changed: tuple[Demand, ...] = ()
    most_sigmas = SURPRISE_SIGMAS
    age_s, done = 0.0, Done()
    for number, look in enumerate(recent, start=1):
        age_s, done = age_s + look.interval_s, done.and_of(look)
        sigmas = _sigmas(done, sum(excesses[:number]))
        is_long = age_s >= SHORTEST_TIME_S
        if is_long and sigmas > most_sigmas and _agree(excesses[:number]):
            changed, most_sigmas = recent[:number], sigmas
    return changed


def _excess(look: Demand, before: Done) -> float:
    """How many requests of the length that was known its work is, beyond its requests."""
    known = before.mean_tokens
    return look.work_tokens / known - look.num_done if known else 0.0


def _agree(excesses: Sequence[float]) -> bool:
    """One odd look puts the sum of all that are added up with it far outside, on its side.

    So the newest must be on that side, and all without the farthest.  One alone has lasted.
    """
    total = sum(excesses)
    rest = total - max(excesses, key=abs) if len(excesses) > 1 else total
    return excesses[0] * total > 0 and rest * total > 0


def _sigmas(done: Done, excess: float) -> float:
    """How far outside the chance of so many, whose lengths vary as an exponential's do.

    Of so many by count or by work, whichever is more: a count of almost none beside the middle of
    long answers is chance as well.
    """
    if done.num_requests <= 0:
        return 0.0
    return abs(excess) / math.sqrt(done.num_requests + max(0.0, excess))
