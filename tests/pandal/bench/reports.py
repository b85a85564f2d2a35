"""Reports made by hand, for tests of what reads them."""

from array import array
from collections.abc import Sequence
from datetime import UTC, datetime

from pandal.bench.answer import Outcome, Usage
from pandal.bench.health import Health
from pandal.bench.overload import server_section
from pandal.bench.record import RequestRecord
from pandal.bench.report import BenchReport, Load
from pandal.bench.summary import (
    generator_section,
    request_columns,
    tenant_sections,
    total_section,
)
from pandal.bench.tenants import Slo, Tenant

TENANT = Tenant("default", Slo(ttft_s=1.0, tpot_s=0.1), 1.0)


def record(number: int, ttft_s: float) -> RequestRecord:
    return RequestRecord(
        tenant=TENANT.name,
        session=number,
        turn=0,
        intended_s=number / 10,
        send_lag_s=0.0,
        outcome=Outcome.COMPLETED,
        status=200,
        retry=None,
        retry_after_s=None,
        ttft_s=ttft_s,
        tpot_s=0.01,
        e2e_s=ttft_s + 0.1,
        usage=Usage(20, 11),
        num_chunks=11,
        gaps_s=array("d", [0.01] * 10),
        num_dropped_turns=0,
    )


IDLE = Health(cpu_ratio=0.1, busiest_cpu_ratio=0.2, loop_lags_s=[0.0])
BUSY = Health(cpu_ratio=0.9, busiest_cpu_ratio=1.0, loop_lags_s=[0.0])


def report_of(
    ttfts_s: Sequence[float], rate_per_s: float = 10.0, health: Health = IDLE
) -> BenchReport:
    records = [record(number, ttft_s) for number, ttft_s in enumerate(ttfts_s)]
    return report_of_records(records, rate_per_s, health)


def report_of_records(
    records: Sequence[RequestRecord], rate_per_s: float = 10.0, health: Health = IDLE
) -> BenchReport:
    return BenchReport(
        pandal_version="0",
        started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        url="http://127.0.0.1:1/v1/chat/completions",
        model="m",
        load=Load(
            arrivals="poisson",
            rate_per_s=rate_per_s,
            concurrency=None,
            duration_s=10.0,
            warmup_s=0.0,
            seed=1,
            workload="fixed",
            parameters={"prompt_tokens": 20.0},
        ),
        total=total_section(records, [TENANT], None),
        tenants=tenant_sections(records, [TENANT], None),
        generator=generator_section(records, health, num_waits_for_a_connection=0, num_resent=0),
        requests=request_columns(records, {TENANT.name: TENANT.slo}),
        server=server_section(records),
    )
