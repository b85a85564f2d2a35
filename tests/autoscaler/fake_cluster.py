"""A small cluster in memory with the habits that matter.

The count is written at once; pods come and go a tick later, the released one first, as a
ReplicaSet would by deletion cost.  A test may crash the caller between any two writes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.cluster import Address, ClusterView
from autoscaler.errors import ClusterRefused
from autoscaler.pool import Phase, Replica, VariantState


class Crash(BaseException):
    """The process dies here."""


@dataclass
class Pod:
    name: str
    num_in_flight: int = 0
    age_ticks: int = 0
    cordoned_at_s: float | None = None
    released_to: int | None = None


class FakeCluster:
    def __init__(self, count: int, *, start_ticks: int = 2) -> None:
        self.count = count
        self.start_ticks = start_ticks
        self.pods = [Pod(f"p{i}", age_ticks=start_ticks) for i in range(count)]
        self.deleted: list[Pod] = []
        self.writes: list[str] = []
        self.crash_before_write: int | None = None
        self.conflict: str | None = None
        self.is_meddled_with = False  # someone adds one just after each look
        self.loses_answers = False  # what is written is written, and nobody hears of it
        self.is_read_only = False
        self.deaf: set[str] = set()  # replicas that refuse whatever concerns them
        self.picks: Callable[[list[Pod]], Pod] = _by_deletion_cost
        self._num_made = count

    def turn(self) -> None:
        """What the controllers do between two ticks."""
        for pod in self.pods:
            pod.age_ticks += 1
        while len(self.pods) < self.count:
            self.pods.append(Pod(f"p{self._num_made}"))
            self._num_made += 1
        while len(self.pods) > self.count:
            gone = self.picks(self.pods)
            self.pods.remove(gone)
            self.deleted.append(gone)

    def serve(self, num_in_flight: int) -> None:
        """Spread over those that take requests; the draining ones lose one each."""
        for pod in self.pods:
            if pod.cordoned_at_s is not None:
                pod.num_in_flight = max(0, pod.num_in_flight - 1)
        left = num_in_flight - sum(p.num_in_flight for p in self.pods if p.cordoned_at_s)
        takers = [p for p in self.pods if p.cordoned_at_s is None and self._is_ready(p)]
        for i, pod in enumerate(takers):
            pod.num_in_flight = max(0, left) // len(takers) + (i < max(0, left) % len(takers))

    async def observe(self) -> ClusterView:
        replicas = tuple(
            Replica(pod.name, self._phase(pod), None, pod.cordoned_at_s, pod.released_to)
            for pod in self.pods
        )
        addresses = {pod.name: Address("in-memory", 0) for pod in self.pods if self._is_ready(pod)}
        seen = VariantState("h200", self.count, replicas)
        self.count += self.is_meddled_with
        return ClusterView((seen,), addresses, self.conflict)

    async def cordon(self, replica: str, *, at_s: float) -> None:
        self._write(f"cordon {replica}")
        self._hearing(replica).cordoned_at_s = at_s

    async def uncordon(self, replica: str) -> None:
        self._write(f"uncordon {replica}")
        pod = self._hearing(replica)
        pod.cordoned_at_s = pod.released_to = None

    async def release(self, replica: str, *, released_to: int) -> None:
        self._write(f"release {replica}")
        self._hearing(replica).released_to = released_to

    async def set_count(self, variant: str, *, seen: int, wanted: int) -> None:
        self._write(f"count {seen}->{wanted}")
        if seen != self.count:
            raise ClusterRefused(f"count is {self.count}, not {seen}")
        if self.is_read_only:
            raise ClusterRefused("not allowed to write")
        self.count = wanted
        if self.loses_answers:
            raise ClusterRefused("no answer in time")

    def _write(self, what: str) -> None:
        if self.crash_before_write is not None:
            self.crash_before_write -= 1
            if self.crash_before_write < 0:
                self.crash_before_write = None
                raise Crash
        self.writes.append(what)

    def _hearing(self, name: str) -> Pod:
        if name in self.deaf:
            raise ClusterRefused(f"{name} does not answer")
        return self._pod(name)

    def _pod(self, name: str) -> Pod:
        for pod in self.pods:
            if pod.name == name:
                return pod
        raise ClusterRefused(f"{name} is gone")

    def _is_ready(self, pod: Pod) -> bool:
        return pod.age_ticks >= self.start_ticks

    def _phase(self, pod: Pod) -> Phase:
        if not self._is_ready(pod):
            return Phase.STARTING
        return Phase.READY if pod.cordoned_at_s is None else Phase.DRAINING


def _by_deletion_cost(pods: list[Pod]) -> Pod:
    return min(pods, key=lambda pod: (pod.released_to is None, -pod.age_ticks))
