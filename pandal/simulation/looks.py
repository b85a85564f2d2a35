"""What an autoscaler sees of the simulated fleet: what the product's own observer makes of it.

Pods tell their engines' counters and the gateway its own, as real ones do; rates, demand and
percentiles come from ``autoscaler.observe``.
"""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from autoscaler.cluster import ClusterView
from autoscaler.engine_metrics import EngineSample
from autoscaler.latency import Buckets
from autoscaler.observe import GatewaySample, Observer
from autoscaler.pool import Phase, PoolState, Replica, VariantState
from contracts.metrics import LATENCY_BUCKETS_S
from pandal.simulation.cluster import Pod, SimulatedCluster

_BOUNDS_S: Final = (*LATENCY_BUCKETS_S, float("inf"))
_NUM_COLD_STARTS: Final = 20  # the last ones


class Counters:
    """Of the gateway and of every pod that has told: since the beginning."""

    def __init__(self) -> None:
        self.num_arrived = 0
        self._num_finished: dict[str, int] = {}
        self._first_tokens: dict[str, list[int]] = {}  # per bucket, not cumulative
        self._clients_first_tokens = [0] * len(_BOUNDS_S)
        self._told: dict[str, Buckets] = {}  # made of them, until another one comes

    def first_token(self, pod: Pod, ttft_s: float, *, waited_s: float) -> None:
        """The engine knows nothing of what waited at the gateway."""
        counts = self._first_tokens.setdefault(pod.name, [0] * len(_BOUNDS_S))
        counts[bisect_left(_BOUNDS_S, ttft_s)] += 1
        self._told.pop(pod.name, None)
        self._clients_first_tokens[bisect_left(_BOUNDS_S, waited_s + ttft_s)] += 1

    def finished(self, pod: Pod) -> None:
        self._num_finished[pod.name] = self._num_finished.get(pod.name, 0) + 1

    def gateway(self, num_queued: int) -> GatewaySample:
        return GatewaySample(
            self.num_arrived, num_queued, ttft=_buckets(self._clients_first_tokens)
        )

    def sample(self, pod: Pod, now_s: float) -> EngineSample:
        generated, prompt = pod.engine.tokens_done(now_s)
        if pod.name not in self._told:
            counts = self._first_tokens.get(pod.name, [0] * len(_BOUNDS_S))
            self._told[pod.name] = _buckets(counts)
        return EngineSample(
            num_running=pod.engine.num_running,
            num_waiting=0,
            kv_cache_usage=pod.engine.kv_cache_usage,
            prompt_tokens=prompt,
            generation_tokens=generated,
            num_finished=self._num_finished.get(pod.name, 0),
            ttft=self._told[pod.name],
        )


def _buckets(counts: list[int]) -> Buckets:
    return dict(zip(_BOUNDS_S, accumulate(counts), strict=True))


class Looks:
    """One after another, as one autoscaler's period says."""

    def __init__(self, cluster: SimulatedCluster, counters: Counters, variant: str) -> None:
        self._cluster = cluster
        self._counters = counters
        self._variant = variant
        self._observer = Observer()

    def look(self, now_s: float, *, num_queued: int, is_blind: bool) -> PoolState:
        cluster = self._cluster
        found = VariantState(
            self._variant,
            cluster.ordered,
            tuple(_replica(pod) for pod in cluster.pods),
            cold_starts_s=tuple(cluster.cold_starts_s[-_NUM_COLD_STARTS:]),
        )
        asked = () if is_blind else [pod for pod in cluster.live if pod.is_ready]
        samples = {pod.name: self._counters.sample(pod, now_s) for pod in asked}
        gateways = None if is_blind else {"gateway": self._counters.gateway(num_queued)}
        return self._observer.look(ClusterView((found,)), samples, now_s, gateways)


def _replica(pod: Pod) -> Replica:
    return Replica(pod.name, _phase(pod), None, pod.cordoned_at_s, pod.released_to)


def _phase(pod: Pod) -> Phase:
    if pod.is_terminating:
        return Phase.TERMINATING
    if pod.starts_at_s is None:
        return Phase.UNSCHEDULABLE
    if not pod.is_ready:
        return Phase.STARTING
    return Phase.READY if pod.cordoned_at_s is None else Phase.DRAINING
