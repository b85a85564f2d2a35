"""A comparison for people: a table, the replicas over time, and what was not kept."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from pandal.screen import as_written
from pandal.simulation.comparison import MAX_COST_RATIO, Comparison
from pandal.simulation.outcome import Outcome

_BARS = " ▁▂▃▄▅▆▇█"


def show(console: Console, comparison: Comparison) -> None:
    case = comparison.case
    title = (
        f"{case.name}: {len(case.setting.arrivals):,} requests in "
        f"{case.setting.duration_s / 60:.0f} min, cold start {case.cold_start_s:.0f} s, "
        f"late after {case.setting.ttft_slo_s:g} s"
    )
    console.print(as_written(title))
    figures = Table(box=None, pad_edge=False)
    figures.add_column("autoscaler", no_wrap=True)
    for column in ("late", "", "TTFT p95", "GPU-h", "changes", "flips", "killed", "most"):
        figures.add_column(column, justify="right", no_wrap=True)
    bars = Table(box=None, pad_edge=False)
    bars.add_column("GPUs over time", no_wrap=True)
    bars.add_column("", no_wrap=True)
    for outcome in comparison.outcomes:
        figures.add_row(*_cells(outcome))
        bars.add_row(outcome.autoscaler, sparkline(outcome.gpus_over_time, case.setting.num_gpus))
    console.print(figures)
    console.print(bars)
    console.print(verdict(comparison))


def verdict(comparison: Comparison) -> str:
    if comparison.shortcomings:
        return f"not kept: {'; '.join(comparison.shortcomings)}"
    return (
        f"kept: no more late than {comparison.best_other.autoscaler}, at most {MAX_COST_RATIO:g} "
        f"times its GPU-hours, no stream killed"
    )


def to_json(comparisons: Sequence[Comparison]) -> str:
    rows = [
        {
            "case": comparison.case.name,
            "cold_start_s": comparison.case.cold_start_s,
            "outcomes": comparison.outcomes,
            "shortcomings": comparison.shortcomings,
        }
        for comparison in comparisons
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def sparkline(values: Sequence[int], most: int) -> str:
    """One character each; the highest is ``most``."""
    steps = len(_BARS) - 1
    return "".join(_BARS[min(steps, -(-value * steps // most))] for value in values)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    late_ratio = outcome.num_late / outcome.num_requests if outcome.num_requests else 0.0
    return (
        outcome.autoscaler,
        f"{outcome.num_late:,}",
        f"{late_ratio:.1%}",
        f"{outcome.ttft_p95_s:.1f} s",
        f"{outcome.gpu_hours:.1f}",
        str(outcome.num_changes),
        str(outcome.num_flips),
        str(outcome.num_killed),
        str(outcome.most_gpus),
    )
