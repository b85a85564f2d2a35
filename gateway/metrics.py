"""The gateway's own counters, rendered in Prometheus' text format 0.0.4.

Plain dictionaries: prometheus_client costs more per request than routing does.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from contracts import metrics as names
from contracts.usage import UsageSource
from gateway.histogram import Histogram
from gateway.request_kinds import Alike
from gateway.shadow_metrics import ShadowMetrics
from gateway.tenant_metrics import TenantMetrics
from gateway.token_counts import TokenCounts
from gateway.trace import Trace

Labels = tuple[tuple[str, str], ...]
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Source = Callable[[], Mapping[Labels, int]]


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """Where a gateway stands with its quota store."""

    num_local_admissions: int  # by its own shares, ever
    num_open_settlements: int
    is_lost: bool


class Metrics:
    """Numbers that their sources add to: a call for each would cost more than the addition."""

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """``tenants``: those that have counters of their own."""
        self.tenants = TenantMetrics(tenants) if tenants else None
        self.shadows = ShadowMetrics(tenants)
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.tokens = TokenCounts()
        self.ttft_s = Histogram(names.LATENCY_BUCKETS_S)
        self._ttft_error = Histogram(names.ERROR_RATIO_BUCKETS)
        self.recovery_s = Histogram(names.LATENCY_BUCKETS_S)
        self.num_breaks = 0
        self.num_fallbacks = 0
        self.num_overcounts = 0
        self.routes: Counter[str] = Counter()  # by reason
        self.num_active = 0
        self.num_shipped = 0
        self._refusals: Counter[str] = Counter()  # by reason
        self._sources: dict[str, tuple[str, Source]] = {}  # with their kinds

    def read_from(self, name: str, source: Source, kind: str = "counter") -> None:
        """Of numbers that somebody else keeps, at every scrape."""
        self._sources[name] = kind, source

    def count(self, ended: Iterable[Alike]) -> None:
        for alike in ended:
            self._count(alike, alike.traces[0], len(alike.traces))

    def _count(self, alike: Alike, one: Trace, num: int) -> None:
        meter, tokens = one.meter, TokenCounts.of(alike.usages)
        self.tokens.add(tokens)
        self.requests[one.operation, one.status] += num
        if one.reason is not None:
            self._refusals[one.reason] += num
        if self.tenants is not None and one.grant is not None:
            self.tenants.count(one.grant.tenant.tenant_id, one.status, num, tokens)
        self.ttft_s.observe(alike.ttfts_s)
        if meter.route is not None:
            self.routes[meter.route] += num
        if meter.served is not None:
            self.num_fallbacks += num
        if meter.provider is not None:
            self.num_overcounts += sum(u.source is UsageSource.PARTIAL for u in alike.usages)
        if meter.num_breaks or meter.is_broken_off:
            self.num_breaks += num * (meter.num_breaks + meter.is_broken_off)
            for trace in alike.traces:
                self.recovery_s.observe(trace.meter.recoveries_s)

    def count_shipped(self, num_events: int) -> None:
        self.num_shipped += num_events

    def observe_predicted_ttft(self, predicted_s: float, actual_s: float) -> None:
        self._ttft_error.observe([abs(predicted_s - actual_s) / actual_s])

    def render(
        self,
        *,
        num_spooled: int,
        num_waiting: int,
        quota: QuotaStanding,
        is_policy_refused: bool = False,
        is_policy_lost: bool = False,
    ) -> str:
        requests: dict[Labels, int] = {
            (("endpoint", endpoint), ("status", str(status))): count
            for (endpoint, status), count in self.requests.items()
        }
        tokens: dict[Labels, int] = {
            (("class", name),): num for name, num in self.tokens.by_class().items()
        }
        return "\n".join(
            [
                *family(names.GATEWAY_REQUESTS, "counter", requests),
                *family(names.GATEWAY_REFUSALS, "counter", _by_reason(self._refusals)),
                *self.shadows.lines(),
                *family(names.GATEWAY_TOKENS, "counter", tokens),
                *family(names.GATEWAY_ROUTES, "counter", _by_reason(self.routes)),
                *family(names.GATEWAY_STREAM_BREAKS, "counter", {(): self.num_breaks}),
                *family(names.GATEWAY_FALLBACKS, "counter", {(): self.num_fallbacks}),
                *family(names.GATEWAY_OVERCOUNTS, "counter", {(): self.num_overcounts}),
                *self._kept_elsewhere(),
                *family(names.GATEWAY_ACTIVE_REQUESTS, "gauge", {(): self.num_active}),
                *family(names.GATEWAY_WAITING_REQUESTS, "gauge", {(): num_waiting}),
                *family(names.GATEWAY_QUOTA_LOST, "gauge", {(): int(quota.is_lost)}),
                *family(names.GATEWAY_POLICY_REFUSED, "gauge", {(): int(is_policy_refused)}),
                *family(names.GATEWAY_POLICY_LOST, "gauge", {(): int(is_policy_lost)}),
                *family(names.GATEWAY_QUOTA_OPEN, "gauge", {(): quota.num_open_settlements}),
                *family(names.GATEWAY_QUOTA_LOCAL, "counter", {(): quota.num_local_admissions}),
                *family(names.GATEWAY_SPOOLED_EVENTS, "counter", {(): num_spooled}),
                *family(names.GATEWAY_SHIPPED_EVENTS, "counter", {(): self.num_shipped}),
                *(() if self.tenants is None else self.tenants.lines()),
                *_histogram(names.GATEWAY_TTFT, self.ttft_s),
                *_histogram(names.GATEWAY_STREAM_RECOVERY, self.recovery_s),
                *_histogram(names.GATEWAY_TTFT_ERROR, self._ttft_error),
                "",
            ]
        )

    def _kept_elsewhere(self) -> Iterator[str]:
        for name, (kind, source) in self._sources.items():
            yield from family(name, kind, source())


def _histogram(name: str, histogram: Histogram) -> Iterator[str]:
    yield f"# TYPE {name} histogram"
    running = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        running += count
        yield f'{name}_bucket{{le="{bound}"}} {running}'
    yield f"{name}_sum {histogram.total}"
    yield f"{name}_count {running}"


def family(name: str, kind: str, values: Mapping[Labels, int]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    for labels, value in sorted(values.items()):
        rendered = ",".join(f'{label}="{text}"' for label, text in labels)
        yield f"{name}{{{rendered}}} {value}" if rendered else f"{name} {value}"


def _by_reason(counts: Mapping[str, int]) -> dict[Labels, int]:
    return {(("reason", reason),): count for reason, count in counts.items()}
