"""How much work a request is: a mean over what was seen, the older the less (pure).

Work done over requests done.  One that is met while it runs has half of its work behind it, so
those that have begun count half, and those that end the other half: answers that grow are seen as
they grow, not when they end.  A short memory beside the long one tells when the mean has changed;
then what was before is forgotten.
"""

import math
from dataclasses import dataclass
from typing import Final

from autoscaler.pool import Demand

LASTING_TIME_S: Final = 300.0  # lengths change slower than rates
RECENT_TIME_S: Final = 60.0
SURPRISE_SIGMAS: Final = 4.0  # as of rates
_FEWEST: Final = 0.5  # requests that work is of: what runs for hours has begun, once


@dataclass(frozen=True, slots=True)
class Done:
    work_tokens: float = 0.0
    num_requests: float = 0.0

    @property
    def mean_tokens(self) -> float | None:
        return self.work_tokens / max(_FEWEST, self.num_requests) if self.num_requests > 0 else None


@dataclass(frozen=True, slots=True)
class Lengths:
    recent: Done = Done()
    lasting: Done = Done()

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
    recent = _later(lengths.recent, demand, RECENT_TIME_S)
    lasting = _later(lengths.lasting, demand, LASTING_TIME_S)
    return Lengths(recent, recent if _is_another(recent, lasting) else lasting)


def _later(done: Done, demand: Demand, time_s: float) -> Done:
    kept = math.exp(-demand.interval_s / time_s)
    return Done(
        kept * done.work_tokens + demand.work_tokens, kept * done.num_requests + demand.num_done
    )


def _is_another(recent: Done, lasting: Done) -> bool:
    """Far outside the chance of work of so many, whose lengths vary as an exponential's do.

    Of so many by count or by work, whichever is more: a count of almost none beside the middle of
    long answers is chance as well.
    """
    known = lasting.mean_tokens
    if recent.mean_tokens is None or not known:
        return False
    num_by_work = recent.work_tokens / known
    num = max(recent.num_requests, num_by_work)
    return abs(num_by_work - recent.num_requests) > SURPRISE_SIGMAS * math.sqrt(num)
