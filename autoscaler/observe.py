"""From the cluster's view and the engines' counters to a PoolState.

Remembers the samples of the look before, because a rate needs two.  Engines that restarted, came
or went between two looks have no rate, and what is gone from the cluster is not looked at.
Arrivals are what finished plus what is more in flight: a stream of an hour counts when it begins.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from autoscaler.cluster import ClusterView
from autoscaler.engine_metrics import EngineSample
from autoscaler.latency import Buckets, grown, p95, summed
from autoscaler.pool import Demand, EngineLoad, Phase, PoolState, Replica, VariantState

TTFT_WINDOW_S: Final = 60.0
PROMPT_TOKEN_WORK: Final = 0.05  # of a generated token's: prefills run that much faster


class Observer:
    def __init__(self) -> None:
        self._before: Mapping[str, EngineSample] = {}
        self._before_s: float | None = None
        self._ttft: deque[tuple[float, Buckets]] = deque()

    def look(
        self, view: ClusterView, samples: Mapping[str, EngineSample | None], now_s: float
    ) -> PoolState:
        """``samples``: of the replicas that were asked; ``None`` for those that did not tell."""
        interval_s = None if self._before_s is None else now_s - self._before_s
        live = {r.name for variant in view.variants for r in variant.replicas if r.is_live}
        told = {name: s for name, s in samples.items() if s is not None and name in live}
        pairs = {
            name: (self._before[name], sample)
            for name, sample in told.items()
            if name in self._before and _is_later(self._before[name], sample)
        }
        self._note_ttft(pairs, now_s)
        state = PoolState(
            now_s,
            tuple(_with_loads(variant, told, pairs, interval_s) for variant in view.variants),
            _demand(view, told, pairs, interval_s),
            ttft=p95(summed(buckets for _, buckets in self._ttft)),
        )
        # One that did not tell this time is not forgotten: it may tell the next.
        kept = {name: s for name, s in self._before.items() if name in live}
        self._before, self._before_s = {**kept, **told}, now_s
        return state

    def _note_ttft(
        self, pairs: Mapping[str, tuple[EngineSample, EngineSample]], now_s: float
    ) -> None:
        self._ttft.append((now_s, summed(grown(a.ttft, b.ttft) for a, b in pairs.values())))
        while self._ttft[0][0] < now_s - TTFT_WINDOW_S:
            self._ttft.popleft()


def _is_later(before: EngineSample, after: EngineSample) -> bool:
    """A counter that went down began anew."""
    return (
        after.num_finished >= before.num_finished
        and after.generation_tokens >= before.generation_tokens
        and after.prompt_tokens >= before.prompt_tokens
    )


def _work_tokens(before: EngineSample, after: EngineSample) -> float:
    prompt = after.prompt_tokens - before.prompt_tokens
    return after.generation_tokens - before.generation_tokens + PROMPT_TOKEN_WORK * prompt


def _with_loads(
    variant: VariantState,
    told: Mapping[str, EngineSample],
    pairs: Mapping[str, tuple[EngineSample, EngineSample]],
    interval_s: float | None,
) -> VariantState:
    def loaded(found: Replica) -> Replica:
        sample = told.get(found.name)
        if sample is None:
            return found
        rate = None
        if found.name in pairs and interval_s is not None and interval_s > 0:
            rate = _work_tokens(*pairs[found.name]) / interval_s
        load = EngineLoad(sample.num_running, sample.num_waiting, sample.kv_cache_usage, rate)
        return replace(found, load=load)

    return replace(variant, replicas=tuple(loaded(found) for found in variant.replicas))


def _demand(
    view: ClusterView,
    told: Mapping[str, EngineSample],
    pairs: Mapping[str, tuple[EngineSample, EngineSample]],
    interval_s: float | None,
) -> Demand | None:
    """Of those that told, scaled to all that serve: a router gives silent ones their share too."""
    num_serving = sum(
        replica.phase in (Phase.READY, Phase.DRAINING)
        for variant in view.variants
        for replica in variant.replicas
    )
    if interval_s is None or interval_s <= 0 or (num_serving > 0 and not pairs):
        return None
    finished = sum(after.num_finished - before.num_finished for before, after in pairs.values())
    more = sum(_in_flight(after) - _in_flight(before) for before, after in pairs.values())
    share = num_serving / len(pairs) if pairs else 1.0
    work = sum(_work_tokens(before, after) for before, after in pairs.values())
    return Demand(
        interval_s=interval_s,
        num_arrived=round(max(0.0, finished + more) * share),
        num_in_flight=sum(_in_flight(sample) for sample in told.values()),
        tokens_per_request=work / finished if finished > 0 else None,
    )


def _in_flight(sample: EngineSample) -> int:
    return sample.num_running + sample.num_waiting
