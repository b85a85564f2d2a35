"""How much work a request is: a mean over what was seen, the older the less (pure).

Work done over requests done.  One that is met while it runs has half of its work behind it, so
those that have begun count half, and those that end the other half: answers that grow are seen as
they grow, not when they end.  The looks of the last minute are kept beside the long memory: where
all since one of them are far outside chance, the mean changed about then, and what was before is
forgotten (a generalised likelihood ratio's way to find when).
"""

import math
from dataclasses import dataclass
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
class Lengths:
    recent: tuple[Demand, ...] = ()  # the newest first; none from before a change
    lasting: Done = Done()
    before: Done | None = None  # a change that is not a minute ago: what was known then

    @property
    def mean_tokens(self) -> float | None:
        """``None``: nothing has been done yet."""
        return self.lasting.mean_tokens


def next_lengths(lengths: Lengths, demand: Demand) -> Lengths:
    """A look in which nothing was done says nothing, and nothing grows old in it.

    Work counts also where nothing begins or ends (the middle of long answers), and a preemption
    takes back what its beginning has counted.
    """
    if demand.work_tokens <= 0 and demand.num_done <= 0:
        return lengths
    recent = _newest((demand, *lengths.recent))
    lasting = lengths.lasting.faded(demand.interval_s).and_of(demand)
    before = lasting if lengths.before is None else lengths.before
    return _since_change(recent, before) or Lengths(recent, lasting)


def _newest(looks: tuple[Demand, ...]) -> tuple[Demand, ...]:
    age_s = 0.0
    for number, look in enumerate(looks, start=1):
        age_s += look.interval_s
        if age_s >= RECENT_TIME_S:
            return looks[:number]
    return looks


def _since_change(recent: tuple[Demand, ...], before: Done) -> Lengths | None:
    """Of the newest looks so many as are farthest from what was known; ``None``: it is chance.

    When it changed is better known with every look after it, so ``before`` stays for a minute.
    """
    found, most_sigmas = None, SURPRISE_SIGMAS
    age_s, done = 0.0, Done()
    for number, look in enumerate(recent, start=1):
        age_s, done = age_s + look.interval_s, done.and_of(look)
        sigmas = _sigmas(done, before)
        if age_s >= SHORTEST_TIME_S and sigmas > most_sigmas:
            is_young = age_s < RECENT_TIME_S
            found = Lengths(recent[:number], done, before if is_young else None)
            most_sigmas = sigmas
    return found


def _sigmas(recent: Done, before: Done) -> float:
    """How far outside the chance of so many, whose lengths vary as an exponential's do.

    Of so many by count or by work, whichever is more: a count of almost none beside the middle of
    long answers is chance as well.
    """
    known = before.mean_tokens
    if recent.mean_tokens is None or not known:
        return 0.0
    num_by_work = recent.work_tokens / known
    num = max(recent.num_requests, num_by_work)
    return abs(num_by_work - recent.num_requests) / math.sqrt(num)
