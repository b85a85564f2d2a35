"""The report of a run: what ``--json`` writes, ``compare`` and ``pandal plan`` read.

Field by field in docs/bench-report.md; the JSON Schema beside it is made from these structs.
Adding a field needs a default; renaming, retyping or removing one needs a new tag.  Holds no key,
no prompt, no answer and no text of an error.
"""

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from contracts.errors import UNDECODABLE
from pandal.bench.tenants import Slo
from pandal.errors import BadOption


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was offered."""

    arrivals: str  # poisson, constant, bursts, trace or closed
    rate_per_s: float | None  # requests; None: closed loop or trace
    concurrency: int | None  # sessions at a time; None: open loop
    burst_size: int | None = None
    duration_s: float | None
    warmup_s: float
    seed: int
    workload: str
    parameters: dict[str, float]  # of the workload


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Linear interpolation between order statistics, as numpy's default."""

    num: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Of completed requests, in seconds, from the intended moment.  ``None``: nothing to tell."""

    ttft_s: Quantiles | None
    tpot_s: Quantiles | None  # per request: (last token - first token) / (tokens - 1)
    itl_s: Quantiles | None  # between chunks, over all requests
    e2e_s: Quantiles | None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Completed requests over the time from the first intended moment to the last end.

    A short run ends with answers that nothing follows: then it is below what was offered even on
    a server that keeps up.
    """

    offered_requests_per_s: float | None  # from the first intended moment to the last; None: one
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that completed within their tenant's SLO, out of all: also of those that failed, and
    of the turns that were not sent because one before them had.
    """

    num_good: int
    good_ratio: float
    requests_per_s: float


class Refusals(msgspec.Struct, frozen=True, kw_only=True):
    """Honesty: of those who waited exactly ``Retry-After``, how many were let in."""

    num_refused: int  # at the first attempt
    num_with_retry_after: int
    num_followed: int
    num_admitted_after: int
    honesty_ratio: float | None
    longest_retry_after_s: float | None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """As the server counted; requests without usage count chunks and no prompt."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefix_hit_ratio: float | None
    num_without_usage: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """At the prices given, of what was served."""

    input_usd_per_million: Decimal
    cached_input_usd_per_million: Decimal
    output_usd_per_million: Decimal
    total_usd: Decimal
    per_thousand_requests_usd: Decimal | None
    per_million_output_tokens_usd: Decimal | None  # everything paid, over the tokens answered


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant, or all."""

    name: str
    slo: Slo | None  # None where tenants differ
    num_requests: int
    outcomes: dict[str, int]
    statuses: dict[str, int]  # "none": no answer
    latency: Latency
    throughput: Throughput
    goodput: Goodput
    refusals: Refusals
    tokens: Tokens
    cost: Cost | None


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """Could the generator itself have been the bottleneck?"""

    is_bottleneck: bool
    reasons: list[str]
    cpu_ratio: float
    busiest_cpu_ratio: float
    loop_lag_p99_s: float
    send_lag_p99_s: float
    chunks_per_s: float
    num_waits_for_a_connection: int
    num_dropped_turns: int  # of conversations that failed before
    num_resent: int = 0  # on a new connection: the kept one had been closed meanwhile


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Did the server keep up with an open loop?  Rates are of the sending after its first quarter.

    Requests that were refused or failed are in none of these figures but ``reasons``.
    """

    is_overloaded: bool | None  # None: it cannot be told, and the reason says why
    reasons: list[str]
    offered_requests_per_s: float | None
    answered_requests_per_s: float | None
    num_in_flight_at_quarter: int | None
    num_in_flight_at_end: int | None


class RequestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Every measured request, a column a list, in the order of the intended moments."""

    tenant: list[str]
    intended_s: list[float]
    outcome: list[str]
    ttft_s: list[float | None]
    tpot_s: list[float | None]
    e2e_s: list[float]
    prompt_tokens: list[int | None]
    cached_tokens: list[int | None]
    completion_tokens: list[int]
    is_good: list[bool]
    num_dropped_turns: list[int] = []  # of its conversation, after it failed; none: an older report


class BenchReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="bench.report.v1"
):
    pandal_version: str
    started_at: datetime
    url: str
    model: str
    load: Load
    total: Section
    tenants: list[Section]
    generator: Generator
    requests: RequestColumns
    is_interrupted: bool = False  # by its user: what was in flight then is not in it
    server: Server | None = None  # None: a closed loop, which waits for its server, or older


class GoodputProbe(msgspec.Struct, frozen=True, kw_only=True):
    rate_per_s: float  # asked for; what chance and failures made of it is offered_rate_per_s
    good_ratio: float
    is_sustained: bool
    num_requests: int
    generator_was_bottleneck: bool  # then a rate that was not sustained says nothing of the server
    offered_rate_per_s: float | None = None  # None: not two requests to tell it by
    server_was_overloaded: bool | None = None  # None: it cannot be told


class GoodputReport(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="bench.goodput.v1"
):
    """The highest rate found at which ``target_ratio`` of the requests are good."""

    target_ratio: float
    highest_rate_per_s: float | None  # None: not even the lowest rate tried
    lowest_failed_rate_per_s: float | None  # None: the search ended before the server failed one
    probes: list[GoodputProbe]
    best: BenchReport | None  # the run at the highest rate
    lowest_generator_limit_per_s: float | None = None  # not sustained, and the generator's fault
    is_interrupted: bool = False  # by its user, before the search ended


def encode_report(report: BenchReport | GoodputReport) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def read_report(path: Path) -> BenchReport:
    """A run's report; of a search, that of its best run.  Raises BadOption."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=BenchReport | GoodputReport)
    except OSError as exc:
        raise BadOption(f"{path}: {exc.strerror}") from exc
    except UNDECODABLE as exc:
        raise BadOption(f"{path}: not a report of this version of 'pandal bench': {exc}") from exc
    report = found.best if isinstance(found, GoodputReport) else found
    if report is None:
        raise BadOption(f"{path}: a search that found no sustained rate")
    return report


def report_schema() -> bytes:
    """JSON Schema of both reports."""
    schema = msgspec.json.schema(BenchReport | GoodputReport)
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
