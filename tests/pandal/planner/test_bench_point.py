"""The planner reads what the load generator writes."""

from pathlib import Path

import pytest

from pandal.bench.report import GoodputReport, encode_report
from pandal.errors import BadOption
from pandal.planner.bench_point import read_point
from tests.pandal.bench.reports import report_of

TTFTS_S = [0.2, 0.4, 0.6]


def test_a_run_is_read(tmp_path: Path) -> None:
    """Answers of 0.3, 0.5 and 0.7 s, sent a tenth of a second apart: the last ends at 0.9 s."""
    path = tmp_path / "report.json"
    path.write_bytes(encode_report(report_of(TTFTS_S)))
    point = read_point(path)
    assert (point.prompt_tokens, point.output_tokens) == (20, 11)
    assert point.ttft_s == pytest.approx(0.4)
    assert point.tpot_s == pytest.approx(0.01)
    assert point.output_tokens_per_s == pytest.approx(3 * 11 / 0.9)
    assert point.num_sequences == pytest.approx((0.3 + 0.5 + 0.7) / 0.9)


def test_a_search_is_read_for_its_best_run(tmp_path: Path) -> None:
    run, search = tmp_path / "run.json", tmp_path / "search.json"
    run.write_bytes(encode_report(report_of(TTFTS_S)))
    search.write_bytes(encode_report(search_report(is_sustained=True)))
    assert read_point(search) == read_point(run)


def test_a_search_that_found_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(encode_report(search_report(is_sustained=False)))
    with pytest.raises(BadOption, match="no sustained rate"):
        read_point(path)


def test_a_run_without_an_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(encode_report(report_of([])))
    with pytest.raises(BadOption, match="no streamed answer"):
        read_point(path)


def search_report(*, is_sustained: bool) -> GoodputReport:
    return GoodputReport(
        target_ratio=0.9,
        highest_rate_per_s=10.0 if is_sustained else None,
        lowest_failed_rate_per_s=20.0,
        probes=[],
        best=report_of(TTFTS_S) if is_sustained else None,
    )
