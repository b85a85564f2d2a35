"""Pods on a virtual clock, with the habits of a ReplicaSet and of a kubelet.

Nodes hold a number of GPUs; a pod beyond them waits.  Deleting prefers pods without a node, then
unready ones, then a lower deletion cost, then chance.  A deleted pod has a grace period in which
its streams may end; those that do not are killed.
"""

import random
from dataclasses import dataclass

from pandal.simulation.engine import Engine, EngineModel


@dataclass(frozen=True, slots=True)
class ColdStart:
    mean_s: float
    spread_ratio: float = 0.1  # standard deviation by mean

    def draw(self, rng: random.Random) -> float:
        return max(1.0, rng.gauss(self.mean_s, self.spread_ratio * self.mean_s))


class Pod:
    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.starts_at_s: float | None = None  # got its node; None: waits for one
        self.ready_at_s: float | None = None  # will be, or has become
        self.is_ready = False
        self.cordoned_at_s: float | None = None
        self.released_to: int | None = None
        self.is_terminating = False
        self.is_gone = False

    @property
    def is_serving(self) -> bool:
        return self.is_ready and not self.is_terminating and self.cordoned_at_s is None


class SimulatedCluster:
    def __init__(
        self, *, model: EngineModel, cold_start: ColdStart, num_gpus: int, rng: random.Random
    ) -> None:
        self._model = model
        self._cold_start = cold_start
        self._num_gpus = num_gpus
        self._rng = rng
        self._num_made = 0
        self.ordered = 0
        self.pods: list[Pod] = []
        self.serving: list[Pod] = []
        self.cold_starts_s: list[float] = []

    @property
    def live(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.is_terminating]

    @property
    def num_gpus_used(self) -> int:
        return sum(pod.starts_at_s is not None for pod in self.pods)

    def begin(self, count: int) -> None:
        """With pods that are ready from the start."""
        self.ordered = count
        for _ in range(count):
            pod = self._made()
            pod.starts_at_s = pod.ready_at_s = 0.0
            pod.is_ready = True
        self.refresh()

    def set_count(self, count: int, now_s: float) -> list[Pod]:
        """Pods that are told to end now."""
        self.ordered = count
        return self.settle(now_s)

    def settle(self, now_s: float) -> list[Pod]:
        """What the controllers do: pods made or told to end, and nodes found."""
        live = self.live
        for _ in range(self.ordered - len(live)):
            self._made()
        ended = sorted(live, key=self._deletion_order)[: max(0, len(live) - self.ordered)]
        for pod in ended:
            pod.is_terminating = True
        self._find_nodes(now_s)
        self.refresh()
        return ended

    def become_ready(self, pod: Pod) -> None:
        assert pod.starts_at_s is not None, "it had a node"
        assert pod.ready_at_s is not None, "so it had a time to become ready"
        pod.is_ready = True
        self.cold_starts_s.append(pod.ready_at_s - pod.starts_at_s)
        self.refresh()

    def remove(self, pod: Pod, now_s: float) -> list[Pod]:
        pod.is_gone = True
        self.pods.remove(pod)
        return self.settle(now_s)

    def refresh(self) -> None:
        self.serving = [pod for pod in self.pods if pod.is_serving]

    def _made(self) -> Pod:
        pod = Pod(f"pod-{self._num_made:04d}", Engine(self._model))
        self._num_made += 1
        self.pods.append(pod)
        return pod

    def _find_nodes(self, now_s: float) -> None:
        free = self._num_gpus - self.num_gpus_used
        for pod in [pod for pod in self.pods if pod.starts_at_s is None][: max(0, free)]:
            pod.starts_at_s = now_s
            pod.ready_at_s = now_s + self._cold_start.draw(self._rng)

    def _deletion_order(self, pod: Pod) -> tuple[bool, bool, bool, float]:
        return (
            pod.starts_at_s is not None,
            pod.is_ready,
            pod.released_to is None,
            self._rng.random(),
        )

    def lose_gpus(self, count: int) -> None:
        self._num_gpus = max(0, self._num_gpus - count)
