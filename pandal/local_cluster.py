"""The autoscaler's port to processes of this machine.

A place for each replica, with its port, is known to the gateway from the beginning; a place is
filled or empty.  A replica that leaves drains by itself: SIGTERM turns its ``/ready`` to 503, the
gateway sends it nothing more, and it ends when its streams have.  Until then its place is taken.
A cordon is a mark alone: it can be undone, and ends nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from autoscaler.cluster import Address, ClusterView
from autoscaler.errors import ClusterRefused
from autoscaler.pool import Phase, Replica, VariantState
from pandal.plan import OwnReplica
from pandal.supervisor import Supervisor

VARIANT: Final = "local"
STUCK_AFTER_S: Final = 600.0  # a model is fetched and compiled for in less

IsReady = Callable[[Address], Awaitable[bool]]


class _Place:
    def __init__(self, replica: OwnReplica) -> None:
        self.replica = replica
        self.started_at_s: float | None = None
        self.ready_after_s: float | None = None
        self.cordoned_at_s: float | None = None
        self.released_to: int | None = None
        self.is_leaving = False


class LocalCluster:
    def __init__(
        self,
        places: Sequence[OwnReplica],
        num_started: int,
        *,
        supervisor: Supervisor,
        start: Callable[[OwnReplica], None],
        is_ready: IsReady,
        now_s: Callable[[], float],
    ) -> None:
        self._places = [_Place(replica) for replica in places]
        self._count = num_started
        self._supervisor = supervisor
        self._start = start
        self._is_ready = is_ready
        self._now_s = now_s
        for place in self._places[:num_started]:  # the launcher has started and awaited them
            place.started_at_s = now_s()
            place.ready_after_s = 0.0

    async def observe(self) -> ClusterView:
        self._settle()
        taken = [place for place in self._places if place.started_at_s is not None]
        replicas = tuple([await self._replica(place) for place in taken])
        starts = [p.ready_after_s for p in taken if p.ready_after_s]  # 0.0: not seen starting
        variant = VariantState(VARIANT, self._count, replicas, cold_starts_s=tuple(starts))
        addresses = {
            place.replica.name: Address(place.replica.address.host, place.replica.port)
            for place in taken
            if place.ready_after_s is not None
        }
        return ClusterView((variant,), addresses)

    async def cordon(self, replica: str, *, at_s: float) -> None:
        self._live(replica).cordoned_at_s = at_s

    async def uncordon(self, replica: str) -> None:
        place = self._live(replica)
        place.cordoned_at_s = place.released_to = None

    async def release(self, replica: str, *, released_to: int) -> None:
        self._live(replica).released_to = released_to

    async def set_count(self, variant: str, *, seen: int, wanted: int) -> None:
        if variant != VARIANT or seen != self._count:
            raise ClusterRefused(f"{variant}: the count is {self._count}, not {seen}")
        self._count = wanted
        self._settle()

    def _settle(self) -> None:
        """As many as were asked for; the released ones go first."""
        self._places = [
            _Place(p.replica) if p.is_leaving and not self._has(p) else p for p in self._places
        ]
        live = [p for p in self._places if p.started_at_s is not None and not p.is_leaving]
        free = [p for p in self._places if p.started_at_s is None]
        for place in free[: max(0, self._count - len(live))]:
            place.started_at_s = self._now_s()
            self._start(place.replica)
        for place in sorted(live, key=lambda p: p.released_to is None)[: len(live) - self._count]:
            place.is_leaving = True
            self._supervisor.retire(place.replica.name)

    async def _replica(self, place: _Place) -> Replica:
        phase = await self._phase(place)
        name = place.replica.name
        return Replica(name, phase, None, place.cordoned_at_s, place.released_to)

    async def _phase(self, place: _Place) -> Phase:
        assert place.started_at_s is not None, "an empty place has no phase"
        if place.is_leaving:
            return Phase.TERMINATING
        age_s = self._now_s() - place.started_at_s
        address = Address(place.replica.address.host, place.replica.port)
        if await self._is_ready(address):
            place.ready_after_s = age_s if place.ready_after_s is None else place.ready_after_s
            return Phase.READY if place.cordoned_at_s is None else Phase.DRAINING
        if place.ready_after_s is None:
            return Phase.STARTING if age_s < STUCK_AFTER_S else Phase.STUCK
        return Phase.STARTING  # it was started again: the supervisor looks after that

    def _has(self, place: _Place) -> bool:
        return self._supervisor.has(place.replica.name)

    def _live(self, name: str) -> _Place:
        for place in self._places:
            if place.replica.name == name and not place.is_leaving:
                return place
        raise ClusterRefused(f"{name} is gone")
