"""From the cluster's view, the engines' counters and the gateway's to a PoolState.

A rate needs two samples (``sample_pairs``).  Engines that restarted have none until they told
twice, and what is gone from the cluster, or does not serve, is not looked at.

Without the gateway, arrivals are what finished plus what is more in flight: a stream of an hour
counts when it begins.  Engines know nothing of requests that wait for a replica to exist.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from autoscaler.cluster import ClusterView
from autoscaler.engine_metrics import EngineSample
from autoscaler.latency import Buckets, grown, p95, summed
from autoscaler.pool import (
    SERVING_PHASES,
    Demand,
    EngineLoad,
    Phase,
    PoolState,
    Replica,
    TimeToFirstToken,
    VariantState,
    work_tokens,
)
from autoscaler.sample_pairs import Pair, SamplePairs

TTFT_WINDOW_S: Final = 60.0
GATEWAY_KEPT_S: Final = 900.0  # one that has not told for so long is a new one


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """Of one of a pool's gateways, where clients ask: also what no replica has seen."""

    num_arrived: float  # since its start, with those refused for want of a replica
    num_queued: int  # on no replica yet
    num_open: int = 0  # of those that count as arrived only when they end, how many have not
    ttft: Buckets = field(default_factory=dict)  # as clients see it
    taken_at_s: float | None = None  # by the clock of who took it; None: it was asked now


GatewaySamples = Mapping[str, GatewaySample]  # by gateway: a name that no later one has


@dataclass(frozen=True, slots=True)
class _Asked:
    """What clients ask for now, by all gateways that told; ``None``: no rate is known."""

    arrived_per_s: float | None
    num_queued: int
    first_tokens: Buckets  # since each told last


@dataclass(frozen=True, slots=True)
class _Serving:
    """The replicas that take or finish requests, and those of them that told."""

    phases: Mapping[str, Phase]
    told: Mapping[str, EngineSample]
    pairs: Mapping[str, Pair[EngineSample]]


class _TtftWindow:
    """First tokens of the last looks.  Counts are whole: what is taken away again leaves none."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Buckets]] = deque()
        self._total: dict[float, float] = {}

    def note(self, buckets: Buckets, now_s: float) -> TimeToFirstToken | None:
        self._looks.append((now_s, buckets))
        self._add(buckets, 1)
        while self._looks[0][0] < now_s - TTFT_WINDOW_S:
            self._add(self._looks.popleft()[1], -1)
        return p95(self._total)

    def _add(self, buckets: Buckets, sign: int) -> None:
        for bound, count in buckets.items():
            self._total[bound] = self._total.get(bound, 0.0) + sign * count


class Observer:
    def __init__(self) -> None:
        self._engines = SamplePairs(_is_later)
        self._gateways = SamplePairs(_is_later_at_gateway)
        self._before_s: float | None = None
        self._ttft = _TtftWindow()
        self._gateway_ttft = _TtftWindow()

    def look(
        self,
        view: ClusterView,
        samples: Mapping[str, EngineSample | None],
        now_s: float,
        gateways: GatewaySamples | None = None,
    ) -> PoolState:
        """``None``: did not tell, or there is none to be asked."""
        live = {r.name for variant in view.variants for r in variant.replicas if r.is_live}
        self._engines.forget(lambda name, _: name not in live)
        self._gateways.forget(lambda _, told_at_s: now_s - told_at_s >= GATEWAY_KEPT_S)
        serving = self._serving(view, samples, now_s)
        asked = self._asked({} if gateways is None else gateways, now_s)
        interval_s = None if self._before_s is None else now_s - self._before_s
        self._before_s = now_s
        return PoolState(
            now_s,
            tuple(_with_loads(variant, serving) for variant in view.variants),
            _demand(serving, interval_s, asked),
            asked.num_queued,
            self._ttft.note(_first_tokens(serving.pairs.values()), now_s),
            self._gateway_ttft.note(asked.first_tokens, now_s),
        )

    def _serving(
        self, view: ClusterView, samples: Mapping[str, EngineSample | None], now_s: float
    ) -> _Serving:
        found = [replica for variant in view.variants for replica in variant.replicas]
        phases = {r.name: r.phase for r in found if r.phase in SERVING_PHASES}
        told = {name: s for name, s in samples.items() if s is not None and name in phases}
        return _Serving(phases, told, self._engines.note(told, now_s))

    def _asked(self, gateways: GatewaySamples, now_s: float) -> _Asked:
        """Of each gateway what came since it told last; one that is new says nothing of that."""
        pairs = self._gateways.note(gateways, now_s).values()
        num_queued = sum(gateway.num_queued for gateway in gateways.values())
        arrived_per_s = max(0.0, sum(map(_asked_per_s, pairs))) if pairs else None
        return _Asked(arrived_per_s, num_queued, _first_tokens(pairs))


def _first_tokens(pairs: Iterable[Pair[EngineSample] | Pair[GatewaySample]]) -> Buckets:
    return summed(
        grown(pair.before.ttft, pair.after.ttft)
        for pair in pairs
        if pair.is_news and pair.before.ttft != pair.after.ttft
    )


def _asked_per_s(pair: Pair[GatewaySample]) -> float:
    num_ended = pair.after.num_arrived - pair.before.num_arrived
    num_more = pair.after.num_open - pair.before.num_open  # fewer, when those open are turned away
    return (num_ended + num_more) / pair.elapsed_s


def _is_later_at_gateway(before: GatewaySample, after: GatewaySample) -> bool:
    return after.num_arrived >= before.num_arrived


def _is_later(before: EngineSample, after: EngineSample) -> bool:
    """A counter that went down began anew."""
    return (
        after.num_finished >= before.num_finished
        and after.generation_tokens >= before.generation_tokens
        and after.prompt_tokens >= before.prompt_tokens
    )


def _with_loads(variant: VariantState, serving: _Serving) -> VariantState:
    def loaded(found: Replica) -> Replica:
        sample, pair = serving.told.get(found.name), serving.pairs.get(found.name)
        if sample is None:
            return found
        rate = None if pair is None else _work_tokens(pair) / pair.elapsed_s
        load = EngineLoad(sample.num_running, sample.num_waiting, sample.kv_cache_usage, rate)
        return replace(found, load=load)

    return replace(variant, replicas=tuple(loaded(found) for found in variant.replicas))


def _demand(
    serving: _Serving,
    interval_s: float | None,
    asked: _Asked,
) -> Demand | None:
    """Unknown where some serve and none of them tells, and where nobody counts who asks."""
    told_per_s = asked.arrived_per_s
    arrived_per_s = _arrived_per_s(serving) if told_per_s is None else told_per_s
    if interval_s is None or interval_s <= 0 or arrived_per_s is None:
        return None
    if serving.phases and not serving.told:
        return None
    return Demand(
        interval_s=interval_s,
        num_arrived=arrived_per_s * interval_s,
        num_in_flight=_num_at_engines(serving) + asked.num_queued,
        work_tokens=sum(map(_work_tokens, serving.pairs.values())),
        num_done=sum(map(_num_done, serving.pairs.values())),
    )


def _arrived_per_s(serving: _Serving) -> float | None:
    """Scaled from those that told to all of their phase: a router gives silent ones their share.

    Those that drain get no new requests, so they say nothing of those that do.
    """
    if not serving.pairs:
        return None
    total = 0.0
    for phase in (Phase.READY, Phase.DRAINING):
        names = [name for name, found in serving.phases.items() if found is phase]
        rates = [_took_per_s(serving.pairs[name]) for name in names if name in serving.pairs]
        if rates:
            total += sum(rates) * len(names) / len(rates)
        elif names and phase is Phase.READY:
            return None
    return max(0.0, total)


def _num_at_engines(serving: _Serving) -> int:
    """Scaled to those that did not tell, and rounded up: they too have requests."""
    if not serving.told:
        return 0
    num_told = sum(_in_flight(sample) for sample in serving.told.values())
    return math.ceil(num_told * len(serving.phases) / len(serving.told))


def _in_flight(sample: EngineSample) -> int:
    return sample.num_running + sample.num_waiting


def _num_finished(pair: Pair[EngineSample]) -> float:
    return pair.after.num_finished - pair.before.num_finished


def _num_done(pair: Pair[EngineSample]) -> float:
    num_more = pair.after.num_running - pair.before.num_running
    return _num_finished(pair) + num_more / 2


def _work_tokens(pair: Pair[EngineSample]) -> float:
    prompt = pair.after.prompt_tokens - pair.before.prompt_tokens
    generated = pair.after.generation_tokens - pair.before.generation_tokens
    return work_tokens(generated=generated, prompt=prompt)


def _took_per_s(pair: Pair[EngineSample]) -> float:
    """Requests that it took, a second."""
    more = _in_flight(pair.after) - _in_flight(pair.before)
    return (_num_finished(pair) + more) / pair.elapsed_s
