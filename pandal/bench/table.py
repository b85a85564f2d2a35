"""A report for a terminal."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from pandal.bench.report import (
    BenchReport,
    Generator,
    GoodputProbe,
    GoodputReport,
    Load,
    Quantiles,
    Section,
    Server,
)
from pandal.screen import as_written

_NUM_FOR_P99: Final = 100
_LONG_S: Final = 10.0


def show(console: Console, report: BenchReport | GoodputReport) -> None:
    run = report.best if isinstance(report, GoodputReport) else report
    if run is not None:
        _show_run(console, run)
    if isinstance(report, GoodputReport):
        console.print(search_line(report), markup=False, highlight=False)


def _show_run(console: Console, report: BenchReport) -> None:
    console.print(as_written(heading(report.url, report.model, report.load)))
    if report.is_interrupted:
        console.print("INTERRUPTED: what was in flight is not in the figures", markup=False)
    sections = [report.total] if len(report.tenants) == 1 else [report.total, *report.tenants]
    console.print(_latency_table(sections), _figures_table(sections))
    if (few := few_line(report.total)) is not None:
        console.print(few, markup=False, highlight=False)
    console.print(generator_line(report.generator), markup=False, highlight=False)
    if report.server is not None:
        console.print(as_written(server_line(report.server)))


def heading(url: str, model: str, load: Load) -> str:
    pace = (
        f"{load.concurrency} at a time"
        if load.concurrency is not None
        else f"{load.arrivals} arrivals"
        + ("" if load.rate_per_s is None else f" at {load.rate_per_s:g}/s")
    )
    return f"{model} at {url}: {load.workload} workload, {pace}, seed {load.seed}"


def few_line(section: Section) -> str | None:
    """A p99 of fewer than a hundred is the slowest one or two of them."""
    found = section.latency.e2e_s
    if found is None or found.num >= _NUM_FOR_P99:
        return None
    return f"Only {num(found.num, 'request')} completed: too few for a p99"


def search_line(report: GoodputReport) -> str:
    if not report.probes:
        return "No request was due in the first run: it was too short for its rate."
    wanted = f"{report.target_ratio:.0%} of requests within their SLO"
    if report.highest_rate_per_s is None:
        lowest = min(report.probes, key=lambda probe: probe.rate_per_s)
        reason = "; THE GENERATOR WAS A BOTTLENECK" if lowest.generator_was_bottleneck else ""
        return f"No rate tried kept {wanted}; the lowest was {probe_rate(lowest)}{reason}."
    best = next(p for p in report.probes if p.rate_per_s == report.highest_rate_per_s)
    return f"Highest rate with {wanted}: {probe_rate(best)}{_limits(report)}."


def probe_rate(probe: GoodputProbe) -> str:
    offered_per_s = probe.offered_rate_per_s
    offered = "" if offered_per_s is None else f" ({offered_per_s:.4g}/s offered)"
    return f"{probe.rate_per_s:.4g} requests/s{offered}"


def _limits(report: GoodputReport) -> str:
    """Where the search ended upwards, and whose limit that was."""
    server_per_s = report.lowest_failed_rate_per_s
    generator_per_s = report.lowest_generator_limit_per_s
    parts = []
    if server_per_s is not None:
        parts.append(f"{server_per_s:.4g}/s was too many")
    if generator_per_s is not None:
        parts.append(f"at {generator_per_s:.4g}/s THE GENERATOR WAS A BOTTLENECK")
    return "; " + ("; ".join(parts) if parts else "the search ended before one failed")


def generator_line(generator: Generator) -> str:
    figures = (
        f"{num(generator.chunks_per_s, 'chunk')}/s, processor {generator.cpu_ratio:.0%} busy "
        f"({generator.busiest_cpu_ratio:.0%} in the busiest second), "
        f"loop {generator.loop_lag_p99_s * 1e3:.1f} ms late (p99)"
    )
    if generator.num_resent:
        figures += f", {num(generator.num_resent, 'request')} sent again on a new connection"
    if generator.is_bottleneck:
        return f"THE GENERATOR WAS A BOTTLENECK: {'; '.join(generator.reasons)}.  {figures}"
    return f"The generator kept up: {figures}"


def server_line(server: Server) -> str:
    if server.is_overloaded is None:
        return f"Whether the server kept up cannot be told: {server.reasons[0]}"
    if server.is_overloaded:
        return f"THE SERVER IS OVERLOADED: {'; '.join(server.reasons)}"
    return (
        f"The server kept up: {server.offered_requests_per_s:.4g} requests/s offered and "
        f"{server.answered_requests_per_s:.4g} answered after the first quarter of "
        f"the sending, {server.num_in_flight_at_quarter} in flight then and "
        f"{server.num_in_flight_at_end} at its end"
    )


def figures_of(section: Section) -> dict[str, str]:
    """Everything but latency, by name, for people."""
    flow, good, tokens = section.throughput, section.goodput, section.tokens
    goodput = f"{good.requests_per_s:.2f} requests/s, {good.good_ratio:.1%} good"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in section.outcomes.items())
    offered = flow.offered_requests_per_s
    figures = {
        "requests": str(section.num_requests)
        + (f" ({outcomes})" if outcomes else "")
        + ("" if offered is None else f", {offered:.2f}/s offered"),
        "throughput": f"{flow.requests_per_s:.2f} requests/s, "
        f"{flow.output_tokens_per_s:.1f} output tokens/s, "
        f"{flow.prompt_tokens_per_s:.1f} prompt tokens/s over {flow.duration_s:.1f} s",
        "goodput": goodput + _slo(section),
        "tokens": f"{tokens.prompt_tokens} prompt, {tokens.completion_tokens} output",
    }
    if tokens.prefix_hit_ratio is not None:
        figures["prefix hits"] = f"{tokens.prefix_hit_ratio:.1%} of prompt tokens"
    if tokens.num_without_usage:
        uncounted = num(tokens.num_without_usage, "request")
        figures["uncounted"] = f"{uncounted} without usage: chunks counted"
    if section.refusals.num_refused:
        figures["refusals"] = _refusals(section)
    if section.cost is not None:
        figures["cost"] = _cost(section)
    return figures


def num(count: float, noun: str) -> str:
    text = f"{count:.0f}"
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def milliseconds(seconds: float) -> str:
    """From ten seconds on in seconds, with their unit."""
    return f"{seconds * 1e3:.1f}" if seconds < _LONG_S else f"{seconds:.1f} s"


def latency_rows(section: Section) -> list[tuple[str, Quantiles]]:
    latency = section.latency
    rows = [
        ("TTFT", latency.ttft_s),
        ("TPOT", latency.tpot_s),
        ("ITL", latency.itl_s),
        ("end to end", latency.e2e_s),
    ]
    return [(name, found) for name, found in rows if found is not None]


def _latency_table(sections: Sequence[Section]) -> Table:
    table = Table(title="latency, ms", title_justify="left")
    for name in ("", "", "p50", "p90", "p95", "p99", "mean", "max"):
        table.add_column(name, justify="right" if name else "left")
    for section in sections:
        for name, found in latency_rows(section):
            points = (found.p50, found.p90, found.p95, found.p99, found.mean, found.max)
            table.add_row(as_written(section.name), name, *map(milliseconds, points))
    return table


def _figures_table(sections: Sequence[Section]) -> Table:
    table = Table(show_header=False)
    for section in sections:
        for name, text in figures_of(section).items():
            table.add_row(as_written(section.name), name, as_written(text))
    return table


def _slo(section: Section) -> str:
    if section.slo is None:
        return " (each tenant by its own SLO)"
    return f" (TTFT {section.slo.ttft_s:g} s, TPOT {section.slo.tpot_s:g} s)"


def _refusals(section: Section) -> str:
    refusals = section.refusals
    told = f"{refusals.num_refused} refused, {refusals.num_with_retry_after} told when to come back"
    if refusals.honesty_ratio is None:
        return f"{told}; none waited"
    return (
        f"{told}; of {refusals.num_followed} that waited exactly so long, "
        f"{refusals.num_admitted_after} were let in ({refusals.honesty_ratio:.0%})"
    )


def _cost(section: Section) -> str:
    cost = section.cost
    assert cost is not None
    text = f"${cost.total_usd:.6f}"
    if cost.per_million_output_tokens_usd is not None:
        text += f", ${cost.per_million_output_tokens_usd:.4f} per million output tokens"
    return text
