"""When requests are meant to be sent: offsets in seconds from the start of a run, ascending.

Pure: the same process and the same generator of randomness give the same offsets.  A process says
nothing about what is sent.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Protocol


class ArrivalProcess(Protocol):
    """An endless (or, for a trace, finite) stream of offsets, the first at or after zero."""

    def offsets_s(self, rng: random.Random) -> Iterator[float]: ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Users who know nothing of each other."""

    rate_per_s: float

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        at_s = 0.0
        while True:
            at_s += rng.expovariate(self.rate_per_s)
            yield at_s


@dataclass(frozen=True, slots=True)
class Constant:
    """A metronome: the kindest arrivals there are."""

    rate_per_s: float

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        number = 0
        while True:
            yield number / self.rate_per_s  # no sum of rounding errors
            number += 1


@dataclass(frozen=True, slots=True)
class Bursts:
    """``burst_size`` requests at one instant; the instants are Poisson, the mean rate is kept."""

    rate_per_s: float
    burst_size: int

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        for at_s in Poisson(self.rate_per_s / self.burst_size).offsets_s(rng):
            for _ in range(self.burst_size):
                yield at_s


@dataclass(frozen=True, slots=True)
class Replay:
    """The offsets of a trace, ``speed`` times as fast."""

    recorded_s: Sequence[float]
    speed: float = 1.0

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        first_s = self.recorded_s[0] if self.recorded_s else 0.0
        for at_s in self.recorded_s:
            yield (at_s - first_s) / self.speed


def until(
    process: ArrivalProcess,
    rng: random.Random,
    *,
    duration_s: float = math.inf,
    num_arrivals: int | None = None,
) -> list[float]:
    """Offsets below ``duration_s``, at most ``num_arrivals``.  One of the two must be finite."""
    assert num_arrivals is not None or math.isfinite(duration_s) or isinstance(process, Replay)
    inside = takewhile(lambda at_s: at_s < duration_s, process.offsets_s(rng))
    return list(islice(inside, num_arrivals))
