"""``pandal bench`` on the command line.  What it runs is imported when it runs."""

import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from pandal.bench.options import (
    ArrivalKind,
    BenchOptions,
    ClientOptions,
    LoadOptions,
    Prices,
    SourceOptions,
    WorkloadKind,
    WorkloadOptions,
    parse_setting,
)
from pandal.bench.tenants import Slo
from pandal.errors import BadOption
from pandal.installation import require_extras
from pandal.screen import say

if TYPE_CHECKING:
    from pandal.bench.live import LiveView
    from pandal.bench.report import BenchReport, GoodputProbe, GoodputReport

bench_app = typer.Typer()

_HELP: Final = """Load a server, and report what its clients see.

Without --url it loads the local fleet that runs, and its tenant "demo" pays: the 60,000 tokens
per minute of that tenant bound the run.  `pandal keys create` makes tenants with more.
"""
_DEFAULT_DURATION_S: Final = 30.0
_PRECISION_RATIO: Final = 0.1  # closer than this, two runs differ by chance
_NUM_PROBES: Final = 12
_WHOM, _WHAT, _WHEN, _GOOD, _OUT = "Whom to load", "What to send", "When", "What is good", "Output"


def _option(panel: str, help_: str, *names: str, default: str | None = None) -> Any:
    """``default``: words for it, where the value is no help.  Any: it is metadata for typer."""
    is_shown = True if default is None else default
    return typer.Option(*names, help=help_, rich_help_panel=panel, show_default=is_shown)


Url = Annotated[str | None, _option(_WHOM, "OpenAI base URL.", default="the local fleet that runs")]
Model = Annotated[str, _option(_WHOM, "As the server calls it.")]
KeyFile = Annotated[
    Path | None, _option(_WHOM, "Holds the API key.", default="PANDAL_BENCH_API_KEY")
]
TenantsFile = Annotated[
    Path | None, _option(_WHOM, "TOML or JSON: tenants, their keys, shares and SLOs.")
]
DataDirectory = Annotated[
    Path | None, _option(_WHOM, "Of the local fleet.", default="~/.local/share/pandal")
]
TimeoutS = Annotated[float, _option(_WHOM, "Of one attempt.")]
MaxConnections = Annotated[int, _option(_WHOM, "More requests at once wait, and it is reported.")]
Workload = Annotated[WorkloadKind, _option(_WHAT, "Kind of prompts and answers.")]
PromptTokens = Annotated[int | None, _option(_WHAT, "Median, about.")]
OutputTokens = Annotated[int | None, _option(_WHAT, "Median of max_tokens.")]
Settings = Annotated[
    list[str] | None, _option(_WHAT, "More of the workload: NAME=NUMBER, as turns=6.", "--set")
]
TraceFile = Annotated[Path | None, _option(_WHAT, "JSON lines, for --workload trace.")]
ExactLengths = Annotated[
    bool, _option(_WHAT, "Send ignore_eos, which vLLM and Pandal know.", "--exact-lengths")
]
Seed = Annotated[int, _option(_WHAT, "The same seed sends the same.")]
Arrivals = Annotated[ArrivalKind, _option(_WHEN, "Of an open loop.")]
Rate = Annotated[float | None, _option(_WHEN, "Open loop: requests per second.")]
Concurrency = Annotated[int | None, _option(_WHEN, "Closed loop: sessions at a time.")]
BurstSize = Annotated[int, _option(_WHEN, "Of --arrivals bursts.")]
DurationS = Annotated[
    float | None, _option(_WHEN, "Of sending.", default="30; with --requests none")
]
Requests = Annotated[int | None, _option(_WHEN, "Send about so many.")]
WarmupS = Annotated[float, _option(_WHEN, "What is sent in it is not reported.")]
RetryAfterS = Annotated[float, _option(_WHEN, "Longest Retry-After to obey, once; 0: none.")]
SloTtftS = Annotated[float, _option(_GOOD, "Time to first token.")]
SloTpotS = Annotated[float, _option(_GOOD, "Mean time per further token.")]
PriceUsd = Annotated[
    str | None, _option(_GOOD, "Per million tokens: IN/OUT or IN/CACHED/OUT, as 0.15/0.60.")
]
FindGoodput = Annotated[
    bool,
    _option(_GOOD, "Search the highest rate that keeps the SLO, from --rate.", "--find-goodput"),
]
GoodputRatio = Annotated[float, _option(_GOOD, "Of requests that must be good.")]
SearchS = Annotated[float, _option(_GOOD, "No run of the search begins later.")]
OutFile = Annotated[Path | None, _option(_OUT, "Write the report as JSON.")]
HtmlFile = Annotated[Path | None, _option(_OUT, "Write a page with plots.")]
AsJson = Annotated[bool, _option(_OUT, "Print JSON instead of tables.", "--json")]


@bench_app.callback(invoke_without_command=True, help=_HELP)
def bench(
    context: typer.Context,
    url: Url = None,
    model: Model = "default",
    api_key_file: KeyFile = None,
    tenants: TenantsFile = None,
    data_dir: DataDirectory = None,
    timeout_s: TimeoutS = 300.0,
    max_connections: MaxConnections = 4096,
    workload: Workload = WorkloadKind.LOGNORMAL,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    settings: Settings = None,
    trace: TraceFile = None,
    exact_lengths: ExactLengths = False,
    seed: Seed = 1,
    arrivals: Arrivals = ArrivalKind.POISSON,
    rate: Rate = None,
    concurrency: Concurrency = None,
    burst_size: BurstSize = 8,
    duration_s: DurationS = None,
    requests: Requests = None,
    warmup_s: WarmupS = 0.0,
    retry_after_s: RetryAfterS = 60.0,
    slo_ttft_s: SloTtftS = 1.0,
    slo_tpot_s: SloTpotS = 0.1,
    price_usd: PriceUsd = None,
    find_goodput: FindGoodput = False,
    goodput_ratio: GoodputRatio = 0.9,
    search_s: SearchS = 600.0,
    out: OutFile = None,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Load a server, and report what its clients see."""
    if context.invoked_subcommand is not None:
        return
    require_extras(("bench",))
    from pandal.bench.source import build_options

    source = SourceOptions(url, api_key_file, tenants, Slo(ttft_s=slo_ttft_s, tpot_s=slo_tpot_s))
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    what = WorkloadOptions(workload, _given(lengths, settings), trace)
    sending_s = _duration_s(duration_s, requests)
    load = LoadOptions(arrivals, rate, concurrency, burst_size, sending_s, requests, warmup_s, seed)
    client = ClientOptions(model, exact_lengths, timeout_s, max_connections, retry_after_s)
    options = build_options(source, what, load, client, _prices(price_usd), data_dir)
    _check_writable({"--out": out, "--html": html})
    report = _find(options, goodput_ratio, search_s) if find_goodput else _run(options)
    raise typer.Exit(_written(report, out, html, as_json))


@bench_app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="A report of --out.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Is run B different from run A?  Differences with 95 % intervals."""
    require_extras(("bench",))
    from pandal.bench.compare import compare as compare_reports
    from pandal.bench.compare import show_comparison
    from pandal.bench.report import read_report

    comparison = compare_reports(read_report(a), read_report(b), seed)
    if as_json:
        say(msgspec.json.encode(comparison).decode())
    else:
        show_comparison(Console(), comparison)


def _run(options: BenchOptions) -> "BenchReport":
    from pandal.bench.experiment import run_bench

    return run_bench(options, _live())


def _find(options: BenchOptions, goodput_ratio: float, search_s: float) -> "GoodputReport":
    from pandal.bench.experiment import find_goodput
    from pandal.bench.goodput import SearchBounds

    if options.load.rate_per_s is None:
        raise BadOption("--find-goodput needs --rate, the first to try")
    if not 0 < goodput_ratio <= 1:
        raise BadOption(f"--goodput-ratio: expected more than 0, at most 1, got {goodput_ratio}")
    bounds = SearchBounds(
        first_rate_per_s=options.load.rate_per_s,
        target_ratio=goodput_ratio,
        precision_ratio=_PRECISION_RATIO,
        num_probes=_NUM_PROBES,
        search_s=search_s,
    )
    return find_goodput(options, bounds, _show_probe, _live())


def _live() -> "LiveView":
    from pandal.bench.live import LiveView

    return LiveView(lambda text: say(text, sys.stderr), sys.stderr)


def _show_probe(probe: "GoodputProbe") -> None:
    from pandal.bench.table import probe_rate

    verdict = "kept" if probe.is_sustained else "not kept"
    if probe.generator_was_bottleneck:
        verdict += ", THE GENERATOR WAS A BOTTLENECK"
    if probe.server_was_overloaded:
        verdict += ", the server was overloaded"
    typer.echo(f"{probe_rate(probe)}: {probe.good_ratio:.1%} good, {verdict}", err=True)


def _written(
    report: "BenchReport | GoodputReport", out: Path | None, html: Path | None, as_json: bool
) -> int:
    """The exit code."""
    from pandal.bench.html import report_page
    from pandal.bench.report import encode_report
    from pandal.bench.table import show

    if out is not None:
        out.write_bytes(encode_report(report))
    if html is not None:
        html.write_text(report_page(report))
    if as_json:
        say(encode_report(report).decode().rstrip("\n"))
    else:
        show(Console(), report)
    return 128 + signal.SIGINT if report.is_interrupted else 0


def _check_writable(paths: Mapping[str, Path | None]) -> None:
    """Before the run: an hour's report must not be lost to a typing error."""
    for option, path in paths.items():
        if path is None:
            continue
        if path.is_dir():
            raise BadOption(f"{option}: {path} is a folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise BadOption(f"{option}: {path} cannot be written")


def _given(lengths: Mapping[str, int | None], settings: Sequence[str] | None) -> dict[str, float]:
    given: dict[str, float] = {name: n for name, n in lengths.items() if n is not None}
    return given | dict(map(parse_setting, () if settings is None else settings))


def _duration_s(duration_s: float | None, num_requests: int | None) -> float:
    if duration_s is not None:
        return duration_s
    return _DEFAULT_DURATION_S if num_requests is None else math.inf


def _prices(text: str | None) -> Prices | None:
    """Of a price for cached tokens nothing is known: they cost what the others do."""
    if text is None:
        return None
    try:
        amounts = [Decimal(part) for part in text.split("/")]
    except InvalidOperation as exc:
        raise BadOption(f"--price-usd: expected IN/OUT or IN/CACHED/OUT, got {text!r}") from exc
    if len(amounts) not in (2, 3) or not all(a.is_finite() and a >= 0 for a in amounts):
        raise BadOption(f"--price-usd: expected IN/OUT or IN/CACHED/OUT, got {text!r}")
    return Prices(amounts[0], amounts[-2], amounts[-1])
