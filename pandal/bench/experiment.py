"""From options to a report: the composition root of the generator."""

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from math import ceil, inf, isfinite
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from pandal.bench.client import Client
from pandal.bench.goodput import SearchBounds, search
from pandal.bench.health import HealthMeter
from pandal.bench.interruption import until_interrupted
from pandal.bench.live import LiveView
from pandal.bench.options import (
    ArrivalKind,
    BenchOptions,
    LoadOptions,
    build_arrivals,
    build_workload,
    workload_parameters,
)
from pandal.bench.overload import server_section
from pandal.bench.record import RequestRecord
from pandal.bench.report import BenchReport, Generator, GoodputProbe, GoodputReport, Load
from pandal.bench.run import Patience, Run
from pandal.bench.schedule import RequestStyle, Sessions, open_schedule
from pandal.bench.summary import (
    generator_section,
    lateness,
    measured,
    request_columns,
    tenant_sections,
    total_section,
)
from pandal.bench.table import heading
from pandal.bench.target import request_head
from pandal.bench.workload import Workload
from pandal.errors import NothingMeasured, Unreachable

T = TypeVar("T")

_ASKERS_FAULT: Final = frozenset({400, 401, 403, 404, 405, 422})
_GC_THRESHOLD: Final = 100_000  # a collection is a pause in every latency it falls on


def run_bench(options: BenchOptions, live: LiveView) -> BenchReport:
    """Raises BadOption before anything is sent, then Unreachable or NothingMeasured."""
    patience = Patience(options.client.timeout_s, options.client.longest_retry_wait_s)
    report = _in_a_fast_loop(measure(options, build_workload(options.workload), patience, live))
    if not report.requests.intended_s and not report.is_interrupted:
        raise NothingMeasured("no request was due in the time that is measured")
    return report


def find_goodput(
    options: BenchOptions,
    bounds: SearchBounds,
    show: Callable[[GoodputProbe], None],
    live: LiveView,
) -> GoodputReport:
    """Each probe is a run of its own at another rate.  Raises as ``run_bench`` does."""
    workload = build_workload(options.workload)

    async def probe(number: int, rate_per_s: float) -> BenchReport:
        probed, patience = _probe(options, number, rate_per_s)
        return await measure(probed, workload, patience, live)

    return _in_a_fast_loop(search(bounds, probe, show))


def _probe(options: BenchOptions, number: int, rate_per_s: float) -> tuple[BenchOptions, Patience]:
    """Other prompts than in any probe before: those may be in the prefix cache by now."""
    load = replace(options.load, rate_per_s=rate_per_s, seed=options.load.seed + number)
    patience = Patience(
        timeout_s=options.client.timeout_s,
        longest_retry_wait_s=0.0,
        hopeless_end_at_s=load.duration_s,
    )
    return replace(options, load=load), patience


def _check_was_served(url: str, records: Sequence[RequestRecord], last_failure: str | None) -> None:
    """Raises Unreachable, NothingMeasured: the server's speed is not what such a run shows."""
    statuses = {record.status for record in records}
    if statuses == {None}:
        why = "" if last_failure is None else f": {last_failure}"
        raise Unreachable(f"{url}: none of {len(records)} requests was answered{why}")
    if statuses and statuses <= _ASKERS_FAULT:
        told = ", ".join(sorted(map(str, statuses)))
        raise NothingMeasured(f"{url}: each of {len(records)} requests was answered {told}")


async def measure(
    options: BenchOptions, workload: Workload, patience: Patience, live: LiveView
) -> BenchReport:
    """One run.  What it will send is made before it starts, and is not its generator's load."""
    live.begin(heading(options.target.url, options.client.model, _load_section(options)))
    client = Client(options.target, time.perf_counter, options.client.max_connections)
    style = RequestStyle(options.client.model, options.client.is_exact_length)
    run = Run(client, _heads(options), style, patience)
    drive = _prepared(run, options, workload)
    started_at = datetime.now(UTC)
    with _few_pauses():
        meter = HealthMeter()
        try:
            is_cut = await until_interrupted(drive(), live.watch(run, options.load.duration_s))
        finally:
            health = await meter.stop()
            client.close()
    records = measured(run.records, options.load.warmup_s)
    if not is_cut:
        _check_was_served(options.target.url, records, client.last_failure)
    generator = generator_section(
        records,
        health,
        num_waits_for_a_connection=client.num_waits_for_a_connection,
        num_resent=client.num_resent,
    )
    report = _report(options, started_at, records, generator)
    server = None
    if options.load.concurrency is None:
        untold = _untold(is_cut=is_cut, is_late=bool(lateness(records, health)))
        server = server_section(records, until_s=_held_back_from_s(client, run), untold=untold)
    return msgspec.structs.replace(report, is_interrupted=is_cut, server=server)


def _untold(*, is_cut: bool, is_late: bool) -> str | None:
    """Why a run shows nothing of its server."""
    if is_cut:
        return "the run was interrupted"
    return "the generator was a bottleneck" if is_late else None


def _held_back_from_s(client: Client, run: Run) -> float:
    """From when on requests waited for a connection here, and the server was offered less."""
    return inf if client.first_wait_s is None else run.offset_s(client.first_wait_s)


def _prepared(
    run: Run, options: BenchOptions, workload: Workload
) -> Callable[[], Coroutine[Any, Any, None]]:  # Any: what a coroutine is not sent
    """An open loop's whole schedule, or the sessions with which a closed one begins."""
    load = options.load
    sessions = Sessions(workload, options.tenants, load.seed)
    num_sessions = _num_sessions(load, workload)
    if load.concurrency is not None:
        waiting = islice(sessions.endless(), num_sessions)
        first = list(islice(waiting, load.concurrency))
        return partial(run.closed_loop, chain(first, waiting), load.concurrency, load.duration_s)
    process = build_arrivals(load, workload, workload_parameters(options.workload))
    arrivals = open_schedule(
        process, sessions, load.seed, duration_s=load.duration_s, num_sessions=num_sessions
    )
    return partial(run.open_loop, arrivals)


def _num_sessions(load: LoadOptions, workload: Workload) -> int | None:
    if load.num_requests is None:
        return None
    return ceil(load.num_requests / workload.turns_per_conversation)


def _heads(options: BenchOptions) -> dict[str, bytes]:
    return {t.name: request_head(options.target, t.api_key) for t in options.tenants}


def _report(
    options: BenchOptions,
    started_at: datetime,
    records: Sequence[RequestRecord],
    generator: Generator,
) -> BenchReport:
    tenants, prices = options.tenants, options.prices
    return BenchReport(
        pandal_version=version("pandal"),
        started_at=started_at,
        url=options.target.url,
        model=options.client.model,
        load=_load_section(options),
        total=total_section(records, tenants, prices),
        tenants=tenant_sections(records, tenants, prices),
        generator=generator,
        requests=request_columns(records, {tenant.name: tenant.slo for tenant in tenants}),
    )


def _load_section(options: BenchOptions) -> Load:
    load = options.load
    is_closed = load.concurrency is not None
    return Load(
        arrivals="closed" if is_closed else str(load.arrivals),
        rate_per_s=load.rate_per_s,
        concurrency=load.concurrency,
        burst_size=load.burst_size if load.arrivals is ArrivalKind.BURSTS else None,
        duration_s=load.duration_s if isfinite(load.duration_s) else None,
        warmup_s=load.warmup_s,
        seed=load.seed,
        workload=str(options.workload.kind),
        parameters=workload_parameters(options.workload),
    )


def _in_a_fast_loop(work: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio.Runner.run takes
    _allow_many_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _allow_many_files() -> None:
    """A connection is an open file, and the usual soft limit is 1,024."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _few_pauses() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
