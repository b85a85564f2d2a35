"""The search for the highest sustained rate, over a server whose capacity is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandal.bench.goodput import SearchBounds, search
from pandal.bench.report import BenchReport, GoodputProbe, GoodputReport
from tests.pandal.bench.reports import report_of

BOUNDS = SearchBounds(
    first_rate_per_s=1.0, target_ratio=0.9, precision_ratio=0.1, num_probes=30, search_s=1e9
)


async def found(capacity_per_s: float, bounds: SearchBounds = BOUNDS) -> GoodputReport:
    async def measure(number: int, rate_per_s: float) -> BenchReport:
        num_late = 0 if rate_per_s <= capacity_per_s else 2
        return report_of([0.1] * (10 - num_late) + [9.0] * num_late, rate_per_s)

    shown: list[GoodputProbe] = []
    report = await search(bounds, measure, shown.append)
    assert shown == report.probes
    return report


@settings(deadline=None, max_examples=15)
@given(capacity_per_s=st.floats(0.01, 10_000))
async def test_the_bracket_holds_the_capacity(capacity_per_s: float) -> None:
    report = await found(capacity_per_s)
    assert report.highest_rate_per_s is not None
    assert report.lowest_failed_rate_per_s is not None
    assert report.highest_rate_per_s <= capacity_per_s < report.lowest_failed_rate_per_s
    assert report.lowest_failed_rate_per_s / report.highest_rate_per_s <= 1.1
    assert report.best is not None
    assert report.best.load.rate_per_s == report.highest_rate_per_s


async def test_the_number_of_probes_is_bounded() -> None:
    bounds = SearchBounds(1.0, 0.9, 0.1, num_probes=3, search_s=1e9)
    report = await found(0.0, bounds)
    assert [probe.rate_per_s for probe in report.probes] == [1.0, 0.5, 0.25]
    assert (report.highest_rate_per_s, report.best) == (None, None)


async def test_no_probe_begins_after_the_time_is_up() -> None:
    readings_s = iter([0.0, 1.0, 99.0, 101.0])
    bounds = SearchBounds(1.0, 0.9, 0.1, num_probes=30, search_s=100.0)

    async def measure(number: int, rate_per_s: float) -> BenchReport:
        return report_of([0.1], rate_per_s)

    report = await search(bounds, measure, lambda probe: None, clock_s=lambda: next(readings_s))
    assert [probe.rate_per_s for probe in report.probes] == [1.0, 2.0]
    assert report.lowest_failed_rate_per_s is None


async def test_a_run_in_which_nothing_was_due_tells_nothing() -> None:
    async def measure(number: int, rate_per_s: float) -> BenchReport:
        return report_of([9.0] if rate_per_s >= 1 else [], rate_per_s)

    report = await search(BOUNDS, measure, lambda probe: None)
    assert [probe.rate_per_s for probe in report.probes] == [1.0]
    assert report.lowest_failed_rate_per_s == 1.0


@pytest.mark.parametrize(("target_ratio", "is_sustained"), [(0.8, True), (0.9, False)])
async def test_the_share_that_must_be_good_is_settable(
    target_ratio: float, is_sustained: bool
) -> None:
    bounds = SearchBounds(1.0, target_ratio, 0.1, num_probes=1, search_s=1e9)
    (probe,) = (await found(0.0, bounds)).probes
    assert (probe.good_ratio, probe.is_sustained) == (0.8, is_sustained)
