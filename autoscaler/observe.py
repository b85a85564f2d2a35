"""From the cluster's view, the engines' counters and the gateway's to a PoolState.

Remembers each one's last sample and when it told it, because a rate needs two: who missed a look
has a rate over the time that it missed.  Engines that restarted have none until they told twice,
and what is gone from the cluster, or does not serve, is not looked at.

Without the gateway, arrivals are what finished plus what is more in flight: a stream of an hour
counts when it begins.  Engines know nothing of requests that wait for a replica to exist.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    VariantState,
    work_tokens,
)

TTFT_WINDOW_S: Final = 60.0
GATEWAY_KEPT_S: Final = 900.0  # one that has not told for so long is a new one


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """Of one of a pool's gateways, where clients ask: also what no replica has seen."""

    num_arrived: float  # since its start, with those refused for want of a replica
    num_queued: int  # on no replica yet
    num_open: int = 0  # of those that count as arrived only when they end, how many have not


GatewaySamples = Mapping[str, GatewaySample]  # by gateway: a name that no later one has


@dataclass(frozen=True, slots=True)
class _Asked:
    """What clients ask for now, by all gateways that told; ``None``: no rate is known."""

    arrived_per_s: float | None
    num_queued: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """What one engine told last, and now."""

    before: EngineSample
    after: EngineSample
    elapsed_s: float

    @property
    def num_finished(self) -> float:
        return self.after.num_finished - self.before.num_finished

    @property
    def work_tokens(self) -> float:
        prompt = self.after.prompt_tokens - self.before.prompt_tokens
        generated = self.after.generation_tokens - self.before.generation_tokens
        return work_tokens(generated=generated, prompt=prompt)

    @property
    def arrived_per_s(self) -> float:
        more = _in_flight(self.after) - _in_flight(self.before)
        return (self.num_finished + more) / self.elapsed_s


@dataclass(frozen=True, slots=True)
class _Serving:
    """The replicas that take or finish requests, and those of them that told."""

    phases: Mapping[str, Phase]
    told: Mapping[str, EngineSample]
    pairs: Mapping[str, _Pair]


class Observer:
    def __init__(self) -> None:
        self._before: Mapping[str, tuple[EngineSample, float]] = {}
        self._gateways_before: Mapping[str, tuple[GatewaySample, float]] = {}
        self._before_s: float | None = None
        self._ttft: deque[tuple[float, Buckets]] = deque()

    def look(
        self,
        view: ClusterView,
        samples: Mapping[str, EngineSample | None],
        now_s: float,
        gateways: GatewaySamples | None = None,
    ) -> PoolState:
        """``None``: did not tell, or there is none to be asked."""
        serving = self._serving(view, samples, now_s)
        asked = self._asked({} if gateways is None else gateways, now_s)
        interval_s = None if self._before_s is None else now_s - self._before_s
        self._note_ttft(serving, now_s)
        state = PoolState(
            now_s,
            tuple(_with_loads(variant, serving) for variant in view.variants),
            _demand(serving, interval_s, asked),
            asked.num_queued,
            p95(summed(buckets for _, buckets in self._ttft)),
        )
        self._remember(view, serving, {} if gateways is None else gateways, now_s)
        return state

    def _serving(
        self, view: ClusterView, samples: Mapping[str, EngineSample | None], now_s: float
    ) -> _Serving:
        found = [replica for variant in view.variants for replica in variant.replicas]
        phases = {r.name: r.phase for r in found if r.phase in SERVING_PHASES}
        told = {name: s for name, s in samples.items() if s is not None and name in phases}
        pairs = {}
        for name, sample in told.items():
            before, told_at_s = self._before.get(name, (None, now_s))
            if before is not None and now_s > told_at_s and _is_later(before, sample):
                pairs[name] = _Pair(before, sample, now_s - told_at_s)
        return _Serving(phases, told, pairs)

    def _asked(self, gateways: GatewaySamples, now_s: float) -> _Asked:
        """Of each gateway what came since it told last; one that is new says nothing of that."""
        rates = []
        for name, gateway in gateways.items():
            before, told_at_s = self._gateways_before.get(name, (None, now_s))
            if before is None or now_s <= told_at_s or gateway.num_arrived < before.num_arrived:
                continue  # it told only once, or began anew
            num_ended = gateway.num_arrived - before.num_arrived
            num_more = gateway.num_open - before.num_open  # fewer, when those open are turned away
            rates.append((num_ended + num_more) / (now_s - told_at_s))
        num_queued = sum(gateway.num_queued for gateway in gateways.values())
        return _Asked(max(0.0, sum(rates)) if rates else None, num_queued)

    def _note_ttft(self, serving: _Serving, now_s: float) -> None:
        pairs = serving.pairs.values()
        self._ttft.append((now_s, summed(grown(p.before.ttft, p.after.ttft) for p in pairs)))
        while self._ttft[0][0] < now_s - TTFT_WINDOW_S:
            self._ttft.popleft()

    def _remember(
        self, view: ClusterView, serving: _Serving, gateways: GatewaySamples, now_s: float
    ) -> None:
        """One that did not tell this time is not forgotten: it may tell the next."""
        live = {r.name for variant in view.variants for r in variant.replicas if r.is_live}
        kept = {name: known for name, known in self._before.items() if name in live}
        self._before = {**kept, **{name: (s, now_s) for name, s in serving.told.items()}}
        self._gateways_before = {
            **{n: k for n, k in self._gateways_before.items() if now_s - k[1] < GATEWAY_KEPT_S},
            **{name: (gateway, now_s) for name, gateway in gateways.items()},
        }
        self._before_s = now_s


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
        rate = None if pair is None else pair.work_tokens / pair.elapsed_s
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
    finished = sum(pair.num_finished for pair in serving.pairs.values())
    work = sum(pair.work_tokens for pair in serving.pairs.values())
    return Demand(
        interval_s=interval_s,
        num_arrived=arrived_per_s * interval_s,
        num_in_flight=_num_at_engines(serving) + asked.num_queued,
        tokens_per_request=work / finished if finished > 0 else None,
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
        rates = [serving.pairs[name].arrived_per_s for name in names if name in serving.pairs]
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
