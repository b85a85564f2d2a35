"""The search for the highest sustained rate, over a server whose capacity is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandal.bench.goodput import SearchBounds, search
from pandal.bench.report import BenchReport, GoodputProbe, GoodputReport
from pandal.bench.table import probe_rate, search_line
from tests.pandal.bench.reports import BUSY, IDLE, report_of

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


@pytest.mark.parametrize("server_limit_per_s", [1e9, 3.0], ids=["unknown", "known"])
async def test_a_rate_the_generator_missed_is_no_limit_of_the_servers(
    server_limit_per_s: float,
) -> None:
    """The generator can make 5 requests a second, whatever the server can."""

    async def measure(number: int, rate_per_s: float) -> BenchReport:
        is_good = rate_per_s <= min(5.0, server_limit_per_s)
        health = BUSY if rate_per_s > 5 else IDLE
        return report_of([0.1 if is_good else 9.0] * 10, rate_per_s, health)

    bounds = SearchBounds(16.0, 0.9, 0.1, num_probes=30, search_s=1e9)
    report = await search(bounds, measure, lambda probe: None)
    assert report.highest_rate_per_s is not None
    assert report.lowest_generator_limit_per_s is not None
    assert report.lowest_generator_limit_per_s > 5
    if server_limit_per_s > 5:
        assert report.lowest_failed_rate_per_s is None
        assert report.lowest_generator_limit_per_s / report.highest_rate_per_s <= 1.1
        assert "THE GENERATOR WAS A BOTTLENECK" in search_line(report)
    else:
        assert report.lowest_failed_rate_per_s is not None
        assert report.highest_rate_per_s <= 3 < report.lowest_failed_rate_per_s <= 5


async def test_a_probe_tells_the_rate_it_offered() -> None:
    """Ten requests a second are sent, whatever was asked for."""
    report = await found(4.5)
    assert all(probe.offered_rate_per_s == pytest.approx(10.0) for probe in report.probes)
    assert "4 requests/s (10/s offered)" in probe_rate(report.probes[2])
    assert "(10/s offered)" in search_line(report)


def test_a_search_without_a_probe_has_a_line() -> None:
    report = GoodputReport(
        target_ratio=0.9,
        highest_rate_per_s=None,
        lowest_failed_rate_per_s=None,
        probes=[],
        best=None,
    )
    assert "too short" in search_line(report)


@pytest.mark.parametrize(("target_ratio", "is_sustained"), [(0.8, True), (0.9, False)])
async def test_the_share_that_must_be_good_is_settable(
    target_ratio: float, is_sustained: bool
) -> None:
    bounds = SearchBounds(1.0, target_ratio, 0.1, num_probes=1, search_s=1e9)
    (probe,) = (await found(0.0, bounds)).probes
    assert (probe.good_ratio, probe.is_sustained) == (0.8, is_sustained)
