"""One screenful: 24 lines of 80 characters, whatever there is to tell.  Pure."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final, TypeVar

from contracts.load import ReplicaLoad
from gateway.admission.levels import Levels
from pandal.screen import one_line
from pandal.top.sample import Counters, Sample

T = TypeVar("T")
Count = Callable[[Counters], float]

WIDTH: Final = 80
HEIGHT: Final = 24
_BAR: Final = 16
_REPLICAS, _TENANTS, _SHADOWS = 4, 5, 1  # lines at most, beside heads and rests


def frame(now: Sample, before: Sample | None) -> list[str]:
    """Rates are those since ``before``."""
    above = [
        *_head(now, before),
        *_replicas(now.replicas),
        *_tenants(now.tenants, is_store_there=now.is_store_there),
    ]
    below = list(_scaling(now.scaling))
    refusals = _refusals(now, before, room=HEIGHT - len(above) - len(below))
    return [one_line(line)[:WIDTH] for line in (*above, *refusals, *below)]


def _head(now: Sample, before: Sample | None) -> Iterator[str]:
    at = datetime.fromtimestamp(now.at_s, UTC)
    yield f"pandal top   {at:%Y-%m-%d %H:%M:%S} UTC{'':<20}Ctrl-C ends"
    gateway = now.gateway
    if gateway is None:
        yield "gateway does not answer"
        return
    per_s = _Rates(now, before)
    tokens = {name: per_s.of(_tokens(name)) for name in _CLASSES}
    ttft = per_s.mean(lambda c: c.ttft_sum_s, lambda c: c.num_ttft)
    yield (
        f"{per_s.of(lambda c: c.num_requests):8.1f} requests/s  "
        f"{gateway.num_active:5.0f} running  {gateway.num_waiting:5.0f} waiting  "
        f"{per_s.of(lambda c: c.num_failures):6.1f} failures/s"
    )
    yield (
        f"{tokens['output']:8.0f} tokens/s out  {tokens['input']:8.0f} in  "
        f"{_share(tokens['cached'], tokens['input'])} cached  TTFT "
        f"{'    -' if ttft is None else f'{ttft * 1e3:5.0f}'} ms"
    )
    yield f"! {', '.join(gateway.alarms)}" if gateway.alarms else ""


_CLASSES: Final = ("output", "input", "cached")


class _Rates:
    """Between two looks; all is 0 with one look only, or when the gateway began anew."""

    def __init__(self, now: Sample, before: Sample | None) -> None:
        self._now = now.gateway
        self._before = None if before is None else before.gateway
        self._elapsed_s = 0.0 if before is None else now.at_s - before.at_s

    def of(self, count: Count) -> float:
        if self._now is None or self._before is None or self._elapsed_s <= 0:
            return 0.0
        return max(0.0, count(self._now) - count(self._before)) / self._elapsed_s

    def mean(self, total: Count, number: Count) -> float | None:
        num = self.of(number)
        return self.of(total) / num if num else None


def _replicas(replicas: Mapping[str, ReplicaLoad | None]) -> Iterator[str]:
    yield f"{'replica':<16}{'state':<10}{'running':>8}{'waiting':>8}{'KV':>7}{'tokens/s':>10}"
    for name, load in _some(replicas, _REPLICAS):
        if load is None:
            yield f"{name[:15]:<16}tells nothing"
            continue
        state = "draining" if load.is_draining else "ready" if load.is_ready else "loading"
        yield (
            f"{name[:15]:<16}{state:<10}{load.num_running:>8}{load.num_waiting:>8}"
            f"{load.kv_cache_usage:>7.0%}{load.decode_tokens_per_s:>10.0f}"
        )
    yield from _rest(replicas, _REPLICAS)


def _tenants(tenants: Mapping[str, Levels | None], *, is_store_there: bool) -> Iterator[str]:
    yield f"{'tenant':<16}{'tokens a minute used':<{_BAR + 22}}{'requests a minute used':<24}"
    if not is_store_there:
        yield "the quota store does not answer"
        return
    busiest = dict(sorted(tenants.items(), key=lambda pair: -_used(pair[1])))
    for name, levels in _some(busiest, _TENANTS):
        if levels is None:
            yield f"{name[:15]:<16}-"
            continue
        tokens = levels.tokens_per_minute - levels.tokens
        requests = levels.requests_per_minute - levels.requests
        yield (
            f"{name[:15]:<16}{_bar(tokens, levels.tokens_per_minute)} "
            f"{f'{tokens:,}/{levels.tokens_per_minute:,}':<21}"
            f"{f'{requests:,}/{levels.requests_per_minute:,}':<24}"
        )
    yield from _rest(tenants, _TENANTS)


def _used(levels: Levels | None) -> float:
    """Of the limit that is nearer."""
    if levels is None:
        return 0.0
    tokens = levels.tokens / levels.tokens_per_minute
    return 1 - min(tokens, levels.requests / levels.requests_per_minute)


def _refusals(now: Sample, before: Sample | None, *, room: int) -> Iterator[str]:
    """As many as the other parts leave lines for."""
    if now.gateway is None:
        return
    per_s = _Rates(now, before)
    told = {name: per_s.of(_refused(name)) for name in now.gateway.refusals}
    totals, shadows = now.gateway.refusals, now.gateway.shadow_refusals
    worst = dict(sorted(told.items(), key=lambda pair: (-pair[1], -totals[pair[0]], pair[0])))
    most = room - 1 - min(len(shadows), _SHADOWS)
    if len(worst) > most:
        most -= 1  # for the line that says so
    yield "refused"
    for reason, rate in _some(worst, most):
        yield f"  {rate:7.1f}/s  {totals[reason]:9,.0f} in all  {reason}"
    yield from _rest(worst, most)
    for rule, count in _some(shadows, _SHADOWS):
        yield f"  in shadow  {count:9,.0f} in all  {rule}"


def _scaling(scaling: Mapping[str, object]) -> Iterator[str]:
    if scaling:
        reasons = scaling.get("reasons")
        first = reasons[0] if isinstance(reasons, list) and reasons else {}
        why = first.get("message", "") if isinstance(first, dict) else ""
        wanted, ready = scaling.get("wanted", "?"), scaling.get("ready", "?")
        yield f"scaling  {wanted} wanted, {ready} ready: {why}"


def _bar(used: float, limit: float) -> str:
    filled = round(_BAR * min(1.0, max(0.0, used / limit)))
    return "#" * filled + "." * (_BAR - filled)


def _share(part: float, rest: float) -> str:
    return f"{part / (part + rest):4.0%}" if part + rest else "   -"


def _some(members: Mapping[str, T], most: int) -> Iterator[tuple[str, T]]:
    yield from islice(members.items(), most)


def _rest(members: Mapping[str, object], most: int) -> Iterator[str]:
    if len(members) > most:
        yield f"  and {len(members) - most} more"


def _tokens(name: str) -> Count:
    return lambda counters: counters.tokens.get(name, 0)


def _refused(reason: str) -> Count:
    return lambda counters: counters.refusals.get(reason, 0)
