"""A report as one HTML page: no script, no font and no style from elsewhere."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from operator import add
from typing import Final

from pandal.bench.answer import Outcome
from pandal.bench.report import BenchReport, GoodputReport, RequestColumns, Section
from pandal.bench.svg import Axes, Point, Series, plot
from pandal.bench.table import (
    figures_of,
    generator_line,
    heading,
    latency_rows,
    milliseconds,
    search_line,
    server_line,
)

_NUM_CURVE_POINTS: Final = 200
_MOST_DOTS: Final = 2_000  # a page should open at once

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #6b7485; --paper: #fff; --grid: #e3e7ee;
  --a: #2563eb; --b: #d97706; --c: #dc2626; --card: #f7f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b3; --paper: #14171c;
  --grid: #2b313b; --a: #60a5fa; --b: #fbbf24; --c: #f87171; --card: #1b1f26; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .6rem; border-bottom: 1px solid var(--grid); text-align: right; }
td:first-child, th:first-child, table.figures td { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 1rem; }
svg { background: var(--card); border-radius: 8px; width: 100%; }
svg text { fill: var(--dim); font-size: 10px; text-anchor: middle; }
svg text.title { fill: var(--ink); font-size: 12px; font-weight: 600; }
svg text.right { text-anchor: end; } svg text.legend { text-anchor: start; }
.grid { stroke: var(--grid); } .line { fill: none; stroke-width: 1.8; }
.line.a { stroke: var(--a); } .line.b { stroke: var(--b); } .line.c { stroke: var(--c); }
.dots { opacity: .6; } .dots.a, .mark.a { fill: var(--a); } .dots.b, .mark.b { fill: var(--b); }
.dots.c, .mark.c { fill: var(--c); }
.warning { color: var(--c); font-weight: 600; }
"""


def report_page(report: BenchReport | GoodputReport) -> str:
    if isinstance(report, BenchReport):
        return _page(_title(report), _run(report))
    best = [] if report.best is None else _run(report.best)
    title = "Goodput search" if report.best is None else _title(report.best)
    return _page(title, [f"<p><b>{escape(search_line(report))}</b></p>", _probes(report), *best])


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>pandal bench</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _run(report: BenchReport) -> list[str]:
    sections = [report.total] if len(report.tenants) == 1 else [report.total, *report.tenants]
    server = report.server
    return [
        f"<p>{report.started_at:%Y-%m-%d %H:%M:%S} UTC, pandal {escape(report.pandal_version)}</p>",
        _verdict(generator_line(report.generator), is_bad=report.generator.is_bottleneck),
        *([] if server is None else [_verdict(server_line(server), is_bad=server.is_overloaded)]),
        f'<div class="plots">{"".join(_plots(report.requests))}</div>',
        *map(_section, sections),
    ]


def _verdict(line: str, *, is_bad: bool | None) -> str:
    return f'<p class="{"warning" if is_bad else ""}">{escape(line)}</p>'


def _section(section: Section) -> str:
    names = ("", "p50", "p90", "p95", "p99", "mean", "max")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{name}, ms</td>"
        + "".join(
            f"<td>{milliseconds(value)}</td>"
            for value in (found.p50, found.p90, found.p95, found.p99, found.mean, found.max)
        )
        + "</tr>"
        for name, found in latency_rows(section)
    )
    figures = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>"
        for name, text in figures_of(section).items()
    )
    return (
        f"<h2>{escape(section.name)}</h2><table><tr>{head}</tr>{rows}</table>"
        f'<table class="figures">{figures}</table>'
    )


def _plots(requests: RequestColumns) -> list[str]:
    return [
        plot(
            Axes("TTFT over the run", "intended moment, s", "TTFT, ms"),
            [*_dots(requests, is_good=True), *_dots(requests, is_good=False)],
        ),
        _distribution("TTFT", _completed(requests, requests.ttft_s)),
        _distribution("TPOT", _completed(requests, requests.tpot_s)),
        _distribution("End to end", _completed(requests, requests.e2e_s)),
        _tokens_over_time(requests),
        _in_flight_over_time(requests),
    ]


def _completed(requests: RequestColumns, values: Sequence[float | None]) -> list[float]:
    pairs = zip(values, requests.outcome, strict=True)
    return [value for value, o in pairs if value is not None and o == Outcome.COMPLETED]


def _dots(requests: RequestColumns, *, is_good: bool) -> list[Series]:
    rows = zip(requests.intended_s, requests.ttft_s, requests.is_good, strict=True)
    points = [(at_s, t_s * 1e3) for at_s, t_s, good in rows if t_s is not None and good == is_good]
    thinned = points[:: len(points) // _MOST_DOTS + 1]
    label, css_class = ("within SLO", "a") if is_good else ("outside SLO", "c")
    return [Series(label, thinned, css_class, is_line=False)] if points else []


def _distribution(name: str, values_s: Sequence[float]) -> str:
    ordered = sorted(values_s)
    last = len(ordered) - 1
    steps = [step / _NUM_CURVE_POINTS for step in range(_NUM_CURVE_POINTS + 1)]
    points = [(ordered[round(ratio * last)] * 1e3, ratio) for ratio in steps] if ordered else []
    axes = Axes(f"{name}: share of requests within", f"{name}, ms", "share")
    return plot(axes, [Series(name, points, "a")] if points else [])


def _tokens_over_time(requests: RequestColumns) -> str:
    """A completed answer's tokens count in the second in which it ended."""
    per_second: Counter[int] = Counter()
    ends_s = map(add, requests.intended_s, requests.e2e_s)
    rows = zip(ends_s, requests.completion_tokens, requests.outcome, strict=True)
    for end_s, num_tokens, outcome in rows:
        per_second[int(end_s)] += num_tokens if outcome == Outcome.COMPLETED else 0
    last = max(per_second, default=-1)
    points: list[Point] = [(second, per_second[second]) for second in range(last + 1)]
    axes = Axes("Output tokens per second", "s", "tokens/s")
    return plot(axes, [Series("tokens", points, "b")] if points else [])


def _in_flight_over_time(requests: RequestColumns) -> str:
    """Whether requests gather: a backlog is a line that goes on rising."""
    starts = [(at_s, 1) for at_s in requests.intended_s]
    ends = [(end_s, -1) for end_s in map(add, requests.intended_s, requests.e2e_s)]
    moments = sorted([*starts, *ends])
    counts = accumulate(change for _, change in moments)
    points: list[Point] = [(at_s, count) for (at_s, _), count in zip(moments, counts, strict=True)]
    thinned = points[:: len(points) // _MOST_DOTS + 1]
    axes = Axes("Requests in flight", "s", "requests")
    return plot(axes, [Series("in flight", thinned, "b")] if points else [])


def _probes(report: GoodputReport) -> str:
    points = sorted((probe.rate_per_s, probe.good_ratio) for probe in report.probes)
    axes = Axes("Good requests by rate", "requests/s asked for", "share within SLO")
    series = [Series("measured", points, "a"), Series("measured", points, "a", is_line=False)]
    return f'<div class="plots">{plot(axes, series)}</div>'


def _title(report: BenchReport) -> str:
    return heading(report.url, report.model, report.load)
