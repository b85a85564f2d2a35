"""The gateway's own counters, rendered in Prometheus' text format 0.0.4.

Plain dictionaries: prometheus_client costs more per request than routing does.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from contracts import metrics as names
from contracts.usage import UsageSource
from gateway.shadow_metrics import ShadowMetrics
from gateway.tenant_metrics import TenantMetrics
from gateway.trace import Trace

Labels = tuple[tuple[str, str], ...]
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Source = Callable[[], Mapping[Labels, int]]


class Histogram:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        running = 0
        for bound, count in zip((*self._buckets, "+Inf"), self._counts, strict=True):
            running += count
            yield f'{name}_bucket{{le="{bound}"}} {running}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {running}"


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
        self.num_input_tokens = 0  # without the cached ones
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
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

    def count(self, ended: Iterable[Trace]) -> None:
        for trace in ended:
            self.requests[trace.operation, trace.status] += 1
            if trace.reason is not None:
                self._refusals[trace.reason] += 1
            usage = trace.usage
            if usage is not None:
                cached = usage.cached_prompt_tokens
                self.num_cached_tokens += cached
                self.num_input_tokens += usage.prompt_tokens - cached
                self.num_output_tokens += usage.completion_tokens
            if self.tenants is not None and trace.grant is not None:
                self.tenants.count(trace.grant.tenant.tenant_id, trace.status, usage)
            meter = trace.meter
            if meter.first_byte_monotonic_s is not None:
                self.ttft_s.observe(meter.first_byte_monotonic_s - trace.started_monotonic_s)
            if meter.route is not None:
                self.routes[meter.route] += 1
            self.num_fallbacks += meter.served is not None
            if meter.provider is not None and usage is not None:
                self.num_overcounts += usage.source is UsageSource.PARTIAL
            if meter.num_breaks or meter.is_broken_off:
                self.num_breaks += meter.num_breaks + meter.is_broken_off
                for seconds in meter.recoveries_s:
                    self.recovery_s.observe(seconds)

    def count_shipped(self, num_events: int) -> None:
        self.num_shipped += num_events

    def observe_predicted_ttft(self, predicted_s: float, actual_s: float) -> None:
        self._ttft_error.observe(abs(predicted_s - actual_s) / actual_s)

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
            (("class", "input"),): self.num_input_tokens,
            (("class", "cached"),): self.num_cached_tokens,
            (("class", "output"),): self.num_output_tokens,
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
                f"# TYPE {names.GATEWAY_TTFT} histogram",
                *self.ttft_s.lines(names.GATEWAY_TTFT),
                f"# TYPE {names.GATEWAY_STREAM_RECOVERY} histogram",
                *self.recovery_s.lines(names.GATEWAY_STREAM_RECOVERY),
                f"# TYPE {names.GATEWAY_TTFT_ERROR} histogram",
                *self._ttft_error.lines(names.GATEWAY_TTFT_ERROR),
                "",
            ]
        )

    def _kept_elsewhere(self) -> Iterator[str]:
        for name, (kind, source) in self._sources.items():
            yield from family(name, kind, source())


def family(name: str, kind: str, values: Mapping[Labels, int]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    for labels, value in sorted(values.items()):
        rendered = ",".join(f'{label}="{text}"' for label, text in labels)
        yield f"{name}{{{rendered}}} {value}" if rendered else f"{name} {value}"


def _by_reason(counts: Mapping[str, int]) -> dict[Labels, int]:
    return {(("reason", reason),): count for reason, count in counts.items()}
