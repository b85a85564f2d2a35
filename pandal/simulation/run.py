"""One trace through one fleet under one autoscaler, on a virtual clock.

Requests wait at the gateway, first come first served, until a ready replica has room.  Replicas and
gateway are looked at as the autoscaler's period says; between looks it knows nothing.
"""

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autoscaler.plan import Action, Cordon, Release, SetCount, Uncordon
from autoscaler.pool import PoolState
from pandal.simulation.arrivals import Arrival
from pandal.simulation.cluster import ColdStart, Pod, SimulatedCluster
from pandal.simulation.engine import EngineModel
from pandal.simulation.looks import Counters, Looks
from pandal.simulation.outcome import Outcome, Tally

VARIANT = "gpu"


class Autoscaler(Protocol):
    name: str
    period_s: float

    def tick(self, state: PoolState) -> Sequence[Action]: ...


@dataclass(frozen=True, slots=True)
class NodeFailure:
    at_s: float
    pods_ratio: float  # of those with a GPU; new ones are made and start cold
    gpus_lost: int = 0  # for good


@dataclass(frozen=True, slots=True)
class Setting:
    """All that is the same for every autoscaler."""

    arrivals: Sequence[Arrival]
    duration_s: float
    model: EngineModel
    cold_start: ColdStart
    num_gpus: int
    num_begin: int
    ttft_slo_s: float
    failures: tuple[NodeFailure, ...] = ()
    blind_s: tuple[float, float] | None = None  # no metrics from, to
    grace_s: float = 30.0  # Kubernetes' default terminationGracePeriodSeconds
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _Ready:
    pod: Pod


@dataclass(frozen=True, slots=True)
class _End:
    pod: Pod
    version: int


@dataclass(frozen=True, slots=True)
class _GraceOver:
    pod: Pod


@dataclass(frozen=True, slots=True)
class _Tick:
    pass


_Event = _Ready | _End | _GraceOver | _Tick | NodeFailure


class Simulation:
    def __init__(self, setting: Setting, autoscaler: Autoscaler) -> None:
        self._setting = setting
        self._autoscaler = autoscaler
        self._rng = random.Random(setting.seed)
        self._cluster = SimulatedCluster(
            model=setting.model,
            cold_start=setting.cold_start,
            num_gpus=setting.num_gpus,
            rng=self._rng,
        )
        self._queue: deque[Arrival] = deque()
        self._events: list[tuple[float, int, _Event]] = []
        self._num_events = 0
        self._counters = Counters()
        self._looks = Looks(self._cluster, self._counters, VARIANT)
        self._tally = Tally(setting.ttft_slo_s)
        self._known_pods: set[str] = set()

    def run(self) -> Outcome:
        self._cluster.begin(self._setting.num_begin)
        self._known_pods = {pod.name for pod in self._cluster.pods}
        self._account(0.0)
        self._at(self._autoscaler.period_s, _Tick())
        for failure in self._setting.failures:
            self._at(failure.at_s, failure)
        for arrival in self._setting.arrivals:
            self._until(arrival.at_s)
            self._arrive(arrival)
        self._until(self._setting.duration_s)
        self._tally.end(self._setting.duration_s, self._queue)
        return self._tally.outcome(self._autoscaler.name)

    def _until(self, at_s: float) -> None:
        while self._events and self._events[0][0] <= at_s:
            now_s, _, event = heapq.heappop(self._events)
            self._happen(event, now_s)

    def _at(self, at_s: float, event: _Event) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def _happen(self, event: _Event, now_s: float) -> None:
        match event:
            case _End(pod, version):
                if version == pod.engine.version:
                    self._end_one(pod, now_s)
            case _Ready(pod):
                if not pod.is_gone and not pod.is_terminating:
                    self._cluster.become_ready(pod)
                    self._serve_queue(now_s)
            case _GraceOver(pod):
                if not pod.is_gone:
                    self._tally.num_killed += len(pod.engine.kill())
                    self._remove(pod, now_s)
            case _Tick():
                self._tick(now_s)
            case NodeFailure():
                self._fail(event, now_s)

    def _arrive(self, arrival: Arrival) -> None:
        self._counters.num_arrived += 1
        if self._queue or not self._start(arrival, arrival.at_s):
            self._queue.append(arrival)

    def _start(self, arrival: Arrival, now_s: float) -> bool:
        """On the replica with the fewest requests."""
        serving = self._cluster.serving
        if not serving:
            return False
        pod = min(serving, key=_num_running)
        if not pod.engine.has_room(arrival):
            return False
        ttft_s = pod.engine.start(arrival, now_s)
        waited_s = now_s - arrival.at_s
        self._counters.first_token(pod, ttft_s, waited_s=waited_s)
        self._tally.first_token(waited_s + ttft_s)
        self._expect_end(pod)
        return True

    def _serve_queue(self, now_s: float) -> None:
        while self._queue and self._start(self._queue[0], now_s):
            self._queue.popleft()

    def _expect_end(self, pod: Pod) -> None:
        end_s = pod.engine.next_end_s()
        if end_s is not None:
            self._at(end_s, _End(pod, pod.engine.version))

    def _end_one(self, pod: Pod, now_s: float) -> None:
        pod.engine.end_one(now_s)
        self._counters.finished(pod)
        self._serve_queue(now_s)
        self._expect_end(pod)
        if pod.is_terminating and pod.engine.num_running == 0:
            self._remove(pod, now_s)

    def _tick(self, now_s: float) -> None:
        blind = self._setting.blind_s
        is_blind = blind is not None and blind[0] <= now_s < blind[1]
        state = self._looks.look(now_s, num_queued=len(self._queue), is_blind=is_blind)
        before = self._cluster.ordered
        for action in self._autoscaler.tick(state):
            self._apply(action, now_s)
        self._tally.ordered(before, self._cluster.ordered)
        self._serve_queue(now_s)
        self._at(now_s + self._autoscaler.period_s, _Tick())

    def _apply(self, action: Action, now_s: float) -> None:
        pods = {pod.name: pod for pod in self._cluster.live}
        match action:
            case Cordon(_, name):
                pods[name].cordoned_at_s = now_s
            case Uncordon(_, name):
                pods[name].cordoned_at_s = pods[name].released_to = None
            case Release(_, name, released_to):
                pods[name].released_to = released_to
            case SetCount(_, _, wanted):
                self._told_to_end(self._cluster.set_count(wanted, now_s), now_s)
        self._cluster.refresh()

    def _told_to_end(self, pods: Sequence[Pod], now_s: float) -> None:
        for pod in pods:
            if pod.engine.num_running == 0:
                self._remove(pod, now_s)
            else:
                self._at(now_s + self._setting.grace_s, _GraceOver(pod))
        self._account(now_s)

    def _remove(self, pod: Pod, now_s: float) -> None:
        ended = self._cluster.remove(pod, now_s)
        self._told_to_end(ended, now_s)

    def _fail(self, failure: NodeFailure, now_s: float) -> None:
        self._cluster.lose_gpus(failure.gpus_lost)
        on_nodes = [pod for pod in self._cluster.pods if pod.starts_at_s is not None]
        count = round(failure.pods_ratio * len(on_nodes))
        for pod in self._rng.sample(on_nodes, count):
            self._tally.num_failed += len(pod.engine.kill())
            self._remove(pod, now_s)

    def _account(self, now_s: float) -> None:
        """New pods' readiness, and what is paid from now on."""
        self._tally.gpus(now_s, self._cluster.num_gpus_used)
        for pod in self._cluster.pods:
            if pod.name not in self._known_pods and pod.ready_at_s is not None:
                self._known_pods.add(pod.name)
                self._at(pod.ready_at_s, _Ready(pod))


def _num_running(pod: Pod) -> int:
    return pod.engine.num_running
