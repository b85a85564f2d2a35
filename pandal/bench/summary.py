"""From records to the figures of a report.  Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain

import numpy as np

from pandal.bench.health import BUSY_CPU_RATIO, LATE_S, Health
from pandal.bench.options import Prices
from pandal.bench.record import RequestRecord, RetryOutcome
from pandal.bench.report import (
    Cost,
    Generator,
    Goodput,
    Latency,
    Quantiles,
    Refusals,
    RequestColumns,
    Section,
    Throughput,
    Tokens,
)
from pandal.bench.tenants import Slo, Tenant

_MILLION = Decimal(1_000_000)
_FOLLOWED = {RetryOutcome.ADMITTED, RetryOutcome.REFUSED_AGAIN, RetryOutcome.FAILED}


def measured(records: Sequence[RequestRecord], warmup_s: float) -> list[RequestRecord]:
    """Those meant to be sent after the warm-up, in that order."""
    kept = (record for record in records if record.intended_s >= warmup_s)
    return sorted(kept, key=lambda record: record.intended_s)


def total_section(
    records: Sequence[RequestRecord], tenants: Sequence[Tenant], prices: Prices | None
) -> Section:
    slos = {tenant.name: tenant.slo for tenant in tenants}
    different = set(slos.values())
    slo = next(iter(different)) if len(different) == 1 else None
    return _section("all", slo, records, slos, prices)


def tenant_sections(
    records: Sequence[RequestRecord], tenants: Sequence[Tenant], prices: Prices | None
) -> list[Section]:
    """Rates are over the whole run, so that they add up to the total's."""
    span_s = _span_s(records)
    slos = {tenant.name: tenant.slo for tenant in tenants}
    return [
        _section(
            tenant.name,
            tenant.slo,
            [record for record in records if record.tenant == tenant.name],
            slos,
            prices,
            span_s=span_s,
        )
        for tenant in tenants
    ]


def quantiles(values: Sequence[float]) -> Quantiles | None:
    if not len(values):
        return None
    array = np.asarray(values)
    p50, p90, p95, p99 = (float(q) for q in np.quantile(array, (0.5, 0.9, 0.95, 0.99)))
    return Quantiles(
        num=len(array),
        mean=float(array.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(array.max()),
    )


def lateness(records: Sequence[RequestRecord], health: Health) -> list[str]:
    """Why the generator's own readings may be late; empty: they are not."""
    loop_lag_s, send_lag_s = _p99(health.loop_lags_s), _send_lag_s(records)
    reasons = []
    if health.busiest_cpu_ratio > BUSY_CPU_RATIO:
        reasons.append(f"its processor was {health.busiest_cpu_ratio:.0%} busy for a second")
    if loop_lag_s > LATE_S:
        reasons.append(f"its loop was {loop_lag_s * 1e3:.0f} ms late (p99)")
    if send_lag_s > LATE_S:
        reasons.append(f"it sent {send_lag_s * 1e3:.0f} ms late (p99)")
    return reasons


def generator_section(
    records: Sequence[RequestRecord],
    health: Health,
    *,
    num_waits_for_a_connection: int,
    num_resent: int,
) -> Generator:
    reasons = lateness(records, health)
    if num_waits_for_a_connection:
        reasons.append(f"{num_waits_for_a_connection} requests waited for one of its connections")
    span_s = _span_s(records)
    return Generator(
        is_bottleneck=bool(reasons),
        reasons=reasons,
        cpu_ratio=health.cpu_ratio,
        busiest_cpu_ratio=health.busiest_cpu_ratio,
        loop_lag_p99_s=_p99(health.loop_lags_s),
        send_lag_p99_s=_send_lag_s(records),
        chunks_per_s=_per_s(sum(record.num_chunks for record in records), span_s),
        num_waits_for_a_connection=num_waits_for_a_connection,
        num_dropped_turns=_num_dropped(records),
        num_resent=num_resent,
    )


def request_columns(records: Sequence[RequestRecord], slos: Mapping[str, Slo]) -> RequestColumns:
    usages = [record.usage for record in records]
    return RequestColumns(
        tenant=[record.tenant for record in records],
        intended_s=[record.intended_s for record in records],
        outcome=[record.outcome.value for record in records],
        ttft_s=[record.ttft_s for record in records],
        tpot_s=[record.tpot_s for record in records],
        e2e_s=[record.e2e_s for record in records],
        prompt_tokens=[None if usage is None else usage.prompt_tokens for usage in usages],
        cached_tokens=[None if usage is None else usage.cached_tokens for usage in usages],
        completion_tokens=[record.completion_tokens for record in records],
        is_good=[record.is_good(slos[record.tenant]) for record in records],
        num_dropped_turns=[record.num_dropped_turns for record in records],
    )


def _section(
    name: str,
    slo: Slo | None,
    records: Sequence[RequestRecord],
    slos: Mapping[str, Slo],
    prices: Prices | None,
    *,
    span_s: float | None = None,
) -> Section:
    span_s = _span_s(records) if span_s is None else span_s
    completed = [record for record in records if record.is_completed]
    tokens = _tokens(completed)
    return Section(
        name=name,
        slo=slo,
        num_requests=len(records),
        outcomes=dict(Counter(record.outcome.value for record in records)),
        statuses=dict(Counter("none" if r.status is None else str(r.status) for r in records)),
        latency=_latency(completed),
        throughput=Throughput(
            offered_requests_per_s=_offered_per_s(records),
            duration_s=span_s,
            requests_per_s=_per_s(len(completed), span_s),
            output_tokens_per_s=_per_s(tokens.completion_tokens, span_s),
            prompt_tokens_per_s=_per_s(tokens.prompt_tokens, span_s),
        ),
        goodput=_goodput(records, slos, span_s),
        refusals=_refusals(records),
        tokens=tokens,
        cost=None if prices is None else _cost(tokens, len(completed), prices),
    )


def _latency(completed: Sequence[RequestRecord]) -> Latency:
    return Latency(
        ttft_s=quantiles([r.ttft_s for r in completed if r.ttft_s is not None]),
        tpot_s=quantiles([r.tpot_s for r in completed if r.tpot_s is not None]),
        itl_s=quantiles(list(chain.from_iterable(r.gaps_s for r in completed))),
        e2e_s=quantiles([r.e2e_s for r in completed]),
    )


def _goodput(records: Sequence[RequestRecord], slos: Mapping[str, Slo], span_s: float) -> Goodput:
    num_good = sum(record.is_good(slos[record.tenant]) for record in records)
    num_wanted = len(records) + _num_dropped(records)
    return Goodput(
        num_good=num_good,
        good_ratio=num_good / num_wanted if records else 0.0,
        requests_per_s=_per_s(num_good, span_s),
    )


def _refusals(records: Sequence[RequestRecord]) -> Refusals:
    refused = [record for record in records if record.retry is not None]
    waits_s = [r.retry_after_s for r in refused if r.retry_after_s is not None]
    num_followed = sum(record.retry in _FOLLOWED for record in refused)
    num_admitted = sum(record.retry is RetryOutcome.ADMITTED for record in refused)
    return Refusals(
        num_refused=len(refused),
        num_with_retry_after=len(waits_s),
        num_followed=num_followed,
        num_admitted_after=num_admitted,
        honesty_ratio=num_admitted / num_followed if num_followed else None,
        longest_retry_after_s=max(waits_s, default=None),
    )


def _tokens(completed: Sequence[RequestRecord]) -> Tokens:
    usages = [record.usage for record in completed if record.usage is not None]
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    cached = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
    return Tokens(
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached),
        completion_tokens=sum(record.completion_tokens for record in completed),
        prefix_hit_ratio=sum(cached) / prompt_tokens if cached and prompt_tokens else None,
        num_without_usage=len(completed) - len(usages),
    )


def _cost(tokens: Tokens, num_completed: int, prices: Prices) -> Cost:
    fresh_tokens = tokens.prompt_tokens - tokens.cached_tokens
    total_usd = (
        fresh_tokens * prices.input_usd
        + tokens.cached_tokens * prices.cached_input_usd
        + tokens.completion_tokens * prices.output_usd
    ) / _MILLION
    return Cost(
        input_usd_per_million=prices.input_usd,
        cached_input_usd_per_million=prices.cached_input_usd,
        output_usd_per_million=prices.output_usd,
        total_usd=total_usd,
        per_thousand_requests_usd=_per(total_usd * 1000, num_completed),
        per_million_output_tokens_usd=_per(total_usd * _MILLION, tokens.completion_tokens),
    )


def _per(amount_usd: Decimal, count: int) -> Decimal | None:
    return (amount_usd / count).quantize(Decimal("0.000001")) if count else None


def _span_s(records: Sequence[RequestRecord]) -> float:
    """From the first intended moment to the last end."""
    if not records:
        return 0.0
    return max(r.intended_s + r.e2e_s for r in records) - min(r.intended_s for r in records)


def _offered_per_s(records: Sequence[RequestRecord]) -> float | None:
    if not records:
        return None
    moments_s = [record.intended_s for record in records]
    sending_s = max(moments_s) - min(moments_s)
    return (len(records) - 1) / sending_s if sending_s > 0 else None


def _num_dropped(records: Sequence[RequestRecord]) -> int:
    return sum(record.num_dropped_turns for record in records)


def _per_s(count: int, span_s: float) -> float:
    return count / span_s if span_s > 0 else 0.0


def _send_lag_s(records: Sequence[RequestRecord]) -> float:
    return _p99([record.send_lag_s for record in records])


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99)) if len(values) else 0.0
