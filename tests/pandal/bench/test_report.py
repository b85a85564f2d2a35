"""The report's shape on disk and on a page.  Other tools read it: a change is a version."""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec

from pandal.bench.answer import Outcome, Usage
from pandal.bench.html import report_page
from pandal.bench.report import (
    BenchReport,
    GoodputProbe,
    GoodputReport,
    encode_report,
    report_schema,
)
from pandal.bench.table import milliseconds
from pandal.planner.bench_point import read_point
from tests.pandal.bench.reports import record, report_of, report_of_records

SCHEMA = Path(__file__).parents[3] / "docs" / "bench-report.schema.json"
PROBE = GoodputProbe(
    rate_per_s=10.0,
    good_ratio=0.95,
    is_sustained=True,
    num_requests=3,
    generator_was_bottleneck=False,
)


def search() -> GoodputReport:
    return GoodputReport(
        target_ratio=0.9,
        highest_rate_per_s=10.0,
        lowest_failed_rate_per_s=20.0,
        probes=[PROBE],
        best=report_of([0.1, 0.2, 3.0]),
    )


def test_the_published_schema_is_the_codes() -> None:
    """How it is made: docs/bench-report.md, at its end."""
    assert SCHEMA.read_bytes() == report_schema()


def test_every_field_of_the_report_is_explained() -> None:
    text = (SCHEMA.parent / "bench-report.md").read_text()
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    names = {name for d in definitions.values() for name in d.get("properties", {})}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_a_report_reads_back_and_begins_with_its_version() -> None:
    report = report_of([0.1, 0.2])
    encoded = encode_report(report)
    assert encoded.startswith(b'{"type":"bench.report.v1","pandal_version":"0"')
    assert msgspec.json.decode(encoded, type=BenchReport) == report
    assert encode_report(search()).startswith(b'{"type":"bench.goodput.v1","target_ratio":0.9')


def test_a_report_is_written_as_other_tools_read_it() -> None:
    """Made by ``msgspec.json.format(encode_report(search()), indent=2)``."""
    golden = Path(__file__).with_name("report.golden.json")
    assert golden.read_bytes() == msgspec.json.format(encode_report(search()), indent=2)


def test_the_page_is_whole_in_itself() -> None:
    for report in (report_of([0.1, 0.2, 3.0]), search(), report_of([])):
        page = report_page(report)
        assert not re.findall(r"<(?:script|link|img|iframe)|@import|src=|url\(", page)
        assert page.count("<svg") == page.count("</svg>")
    assert report_page(search()).count("<svg") == 7


def test_tokens_of_answers_that_broke_off_are_in_no_rate() -> None:
    broken = replace(record(1, 0.2), outcome=Outcome.BROKEN)
    pages = [
        report_page(report_of_records([record(0, 0.1), replace(broken, usage=Usage(20, num))]))
        for num in (0, 1_000)
    ]
    assert pages[0] == pages[1]


def test_what_a_server_or_a_user_named_is_no_markup() -> None:
    report = msgspec.structs.replace(report_of([0.1]), model="<script>alert(1)</script>")
    assert "<script>" not in report_page(report)


def test_the_planner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(encode_report(report_of([0.1, 0.3])))
    point = read_point(path)
    assert point.ttft_s == 0.2
    assert (point.prompt_tokens, point.output_tokens) == (20, 11)


def test_long_latencies_are_in_seconds() -> None:
    assert (milliseconds(9.9), milliseconds(34.04)) == ("9900.0", "34.0 s")
