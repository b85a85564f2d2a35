"""The highest rate at which enough requests are good: a bounded search over measured runs.

Doubles or halves until one rate holds and one does not, then bisects between them.  What is
measured is noisy, so the answer is a bracket, not a digit: it ends where the two are close.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pandal.bench.report import BenchReport, GoodputProbe, GoodputReport

Measure = Callable[[int, float], Awaitable[BenchReport]]


@dataclass(frozen=True, slots=True)
class SearchBounds:
    first_rate_per_s: float
    target_ratio: float
    precision_ratio: float  # of the bracket: its upper end over its lower, less one
    num_probes: int
    search_s: float  # no probe begins later


async def search(
    bounds: SearchBounds,
    measure: Measure,
    show: Callable[[GoodputProbe], None],
    clock_s: Callable[[], float] = time.monotonic,
) -> GoodputReport:
    """``measure`` gets the probe's number, for its seed, and its rate."""
    give_up_s = clock_s() + bounds.search_s
    bracket, is_interrupted = _Bracket(bounds), False
    while not bracket.is_closed and clock_s() < give_up_s:
        report = await measure(len(bracket.probes), bracket.next_rate_per_s())
        is_interrupted = report.is_interrupted
        if is_interrupted or report.total.num_requests == 0:
            break  # so slow a rate that nothing was due in a run: there is nothing to tell
        show(bracket.add(report))
    return GoodputReport(
        target_ratio=bounds.target_ratio,
        highest_rate_per_s=bracket.sustained_per_s,
        lowest_failed_rate_per_s=bracket.failed_per_s,
        probes=bracket.probes,
        best=bracket.best,
        lowest_generator_limit_per_s=bracket.generator_limit_per_s,
        is_interrupted=is_interrupted,
    )


class _Bracket:
    """Between the highest rate that held and the lowest that did not.

    A rate that the generator could not keep up with ends the search upwards too, but it is no limit
    of the server's.
    """

    def __init__(self, bounds: SearchBounds) -> None:
        self._bounds = bounds
        self.sustained_per_s: float | None = None
        self.failed_per_s: float | None = None
        self.generator_limit_per_s: float | None = None
        self.probes: list[GoodputProbe] = []
        self.best: BenchReport | None = None

    @property
    def is_closed(self) -> bool:
        if len(self.probes) >= self._bounds.num_probes:
            return True
        upper_per_s = self._upper_per_s
        if self.sustained_per_s is None or upper_per_s is None:
            return False
        return upper_per_s / self.sustained_per_s - 1 <= self._bounds.precision_ratio

    def next_rate_per_s(self) -> float:
        upper_per_s = self._upper_per_s
        if self.sustained_per_s is not None and upper_per_s is not None:
            return math.sqrt(self.sustained_per_s * upper_per_s)
        if self.sustained_per_s is not None:
            return self.sustained_per_s * 2
        if upper_per_s is not None:
            return upper_per_s / 2
        return self._bounds.first_rate_per_s

    @property
    def _upper_per_s(self) -> float | None:
        limits_per_s = (self.failed_per_s, self.generator_limit_per_s)
        return min((limit for limit in limits_per_s if limit is not None), default=None)

    def add(self, report: BenchReport) -> GoodputProbe:
        rate_per_s = report.load.rate_per_s
        assert rate_per_s is not None, "a probe is open loop"
        good_ratio = report.total.goodput.good_ratio
        probe = GoodputProbe(
            rate_per_s=rate_per_s,
            good_ratio=good_ratio,
            is_sustained=good_ratio >= self._bounds.target_ratio,
            num_requests=report.total.num_requests,
            generator_was_bottleneck=report.generator.is_bottleneck,
            offered_rate_per_s=report.total.throughput.offered_requests_per_s,
            server_was_overloaded=None if report.server is None else report.server.is_overloaded,
        )
        self.probes.append(probe)
        if probe.is_sustained:
            self.sustained_per_s, self.best = rate_per_s, report
        elif probe.generator_was_bottleneck:
            self.generator_limit_per_s = rate_per_s
        else:
            self.failed_per_s = rate_per_s
        return probe
