"""What an autoscaler sees of the simulated fleet: the same as of a real one."""

from collections import deque
from typing import Final

from autoscaler.pool import (
    Demand,
    EngineLoad,
    Phase,
    PoolState,
    Replica,
    TimeToFirstToken,
    VariantState,
)
from pandal.simulation.arrivals import Arrival
from pandal.simulation.cluster import Pod, SimulatedCluster
from pandal.simulation.engine import EngineModel

TTFT_WINDOW_S: Final = 60.0


class Meter:
    """The gateway's counters between two looks."""

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self.num_arrived = 0
        self.looked_at_s = 0.0
        self._num_finished = 0
        self._work_tokens = 0.0
        self._first_tokens: deque[tuple[float, float]] = deque()

    def first_token(self, now_s: float, ttft_s: float) -> None:
        self._first_tokens.append((now_s, ttft_s))

    def finished(self, arrival: Arrival) -> None:
        self._num_finished += 1
        self._work_tokens += self._model.work_tokens(arrival)

    def demand(self, now_s: float, num_in_flight: int) -> Demand:
        """Since the last look; which this one is for the next."""
        length = self._work_tokens / self._num_finished if self._num_finished else None
        seen = Demand(now_s - self.looked_at_s, self.num_arrived, num_in_flight, length)
        self.num_arrived = self._num_finished = 0
        self._work_tokens, self.looked_at_s = 0.0, now_s
        return seen

    def ttft(self, now_s: float) -> TimeToFirstToken | None:
        found = self._first_tokens
        while found and found[0][0] < now_s - TTFT_WINDOW_S:
            found.popleft()
        values = sorted(ttft_s for _, ttft_s in found)
        if not values:
            return None
        return TimeToFirstToken(values[int(0.95 * (len(values) - 1))], len(values))


def look(
    cluster: SimulatedCluster,
    meter: Meter,
    variant: str,
    now_s: float,
    *,
    num_queued: int,
    is_blind: bool,
) -> PoolState:
    interval_s = now_s - meter.looked_at_s
    replicas = tuple(_replica(pod, now_s, interval_s, is_blind) for pod in cluster.pods)
    found = VariantState(
        variant, cluster.ordered, replicas, cold_starts_s=tuple(cluster.cold_starts_s[-20:])
    )
    running = sum(pod.engine.num_running for pod in cluster.pods)
    demand = meter.demand(now_s, running + num_queued)
    if is_blind:
        return PoolState(now_s, (found,), None)
    return PoolState(now_s, (found,), demand, num_queued, meter.ttft(now_s))


def _replica(pod: Pod, now_s: float, interval_s: float, is_blind: bool) -> Replica:
    work = pod.engine.work_done_tokens(now_s)
    done, pod.work_seen_tokens = work - pod.work_seen_tokens, work
    load = None
    if pod.is_ready and not is_blind:
        engine = pod.engine
        load = EngineLoad(engine.num_running, 0, engine.kv_cache_usage, done / interval_s)
    return Replica(pod.name, _phase(pod), load, pod.cordoned_at_s, pod.released_to)


def _phase(pod: Pod) -> Phase:
    if pod.is_terminating:
        return Phase.TERMINATING
    if pod.starts_at_s is None:
        return Phase.UNSCHEDULABLE
    if not pod.is_ready:
        return Phase.STARTING
    return Phase.READY if pod.cordoned_at_s is None else Phase.DRAINING
