"""Two runs beside each other: differences shown where there are some, and only there."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pandal.bench.compare import Comparison, Difference, compare, resampled
from pandal.bench.report import GoodputReport, encode_report, read_report
from pandal.errors import BadOption
from tests.pandal.bench.reports import record, report_of, report_of_records


def ttfts_s(seed: int, mean_s: float, num: int = 400) -> list[float]:
    rng = random.Random(seed)
    return [rng.expovariate(1 / mean_s) for _ in range(num)]


def metric(comparison: Comparison, name: str) -> Difference:
    return next(d for d in comparison.differences if d.metric == name)


def test_a_slower_run_is_told_from_a_faster() -> None:
    comparison = compare(report_of(ttfts_s(1, 0.2)), report_of(ttfts_s(2, 0.1)))
    found = metric(comparison, "TTFT p50")
    assert found.low < found.difference < found.high < 0
    assert found.verdict == "B is better"
    assert found.difference == pytest.approx(found.b - found.a)
    assert (
        metric(compare(report_of(ttfts_s(2, 0.1)), report_of(ttfts_s(1, 0.2))), "TTFT p50").verdict
        == "A is better"
    )


def test_two_samples_of_one_server_differ_seldom() -> None:
    """Of 95 % intervals one in twenty misses zero; the seeds are fixed, and so is the count."""
    reports = [report_of(ttfts_s(n, 0.2, num=100)) for n in range(20)]
    pairs = zip(reports[::2], reports[1::2], strict=True)
    shown = [metric(compare(a, b), "TTFT p50").verdict for a, b in pairs]
    assert shown.count("no difference shown") >= 8


def test_a_run_does_not_differ_from_itself() -> None:
    report = report_of(ttfts_s(3, 0.2))
    comparison = compare(report, report)
    assert comparison.is_same_load
    assert {d.verdict for d in comparison.differences} == {"no difference shown"}
    assert all(d.difference == 0 for d in comparison.differences)


def test_the_output_rate_is_the_reports_own() -> None:
    report = report_of(ttfts_s(4, 0.2))
    rate = metric(compare(report, report), "output").a
    assert rate == pytest.approx(report.total.throughput.output_tokens_per_s)


def test_the_good_share_is_the_reports_own_turns_not_sent_included() -> None:
    gave_up = replace(record(1, 9.0), num_dropped_turns=2)
    report = report_of_records([record(0, 0.1), gave_up])
    assert report.total.goodput.good_ratio == 0.25
    assert metric(compare(report, report), "good requests").a == 0.25


def test_blocks_widen_the_interval_of_neighbours_that_are_alike() -> None:
    """A queue makes neighbours alike: 400 of them are worth far fewer than 400 samples."""
    rng = np.random.default_rng(1)
    alike = np.repeat(rng.normal(size=40), 10)
    shuffled = rng.permutation(alike)
    spreads = [
        resampled(sample, lambda rows: rows.mean(axis=-1), np.random.default_rng(2)).std()
        for sample in (alike, shuffled)
    ]
    assert spreads[0] > 1.5 * spreads[1]


def test_the_same_seed_gives_the_same_intervals() -> None:
    a, b = report_of(ttfts_s(1, 0.2)), report_of(ttfts_s(2, 0.2))
    assert compare(a, b, seed=4) == compare(a, b, seed=4)
    assert compare(a, b, seed=4) != compare(a, b, seed=5)


def test_what_a_run_lacks_is_left_out() -> None:
    comparison = compare(report_of([]), report_of(ttfts_s(1, 0.2)))
    assert comparison.differences == []


def test_other_load_is_told() -> None:
    assert not compare(report_of([0.1]), report_of([0.1], rate_per_s=20.0)).is_same_load


def test_a_search_is_read_as_its_best_run(tmp_path: Path) -> None:
    best = report_of([0.1])
    path = tmp_path / "search.json"
    search = GoodputReport(
        target_ratio=0.9,
        highest_rate_per_s=1.0,
        lowest_failed_rate_per_s=None,
        probes=[],
        best=best,
    )
    path.write_bytes(encode_report(search))
    assert read_report(path) == best


@pytest.mark.parametrize("content", [b"{}", b"no json", b'{"type": "bench.report.v9"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(BadOption, match=r"a\.json"):
        read_report(path)
