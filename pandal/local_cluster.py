"""The autoscaler's port to processes of this machine.

A place for each replica, with its port, is known to the gateway from the beginning; a place is
filled or empty.  A replica that leaves drains by itself: SIGTERM turns its ``/ready`` to 503, the
gateway sends it nothing more, and it ends when its streams have.  Until then its place is taken.
A cordon is a mark alone: it can be undone, and ends nothing.

A replica that has become ready stays so until its process ends or says otherwise: silence is a busy
machine's, not the replica's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from autoscaler.cluster import Address, ClusterView
from autoscaler.errors import ClusterRefused
from autoscaler.pool import Phase, Replica, VariantState
from pandal.plan import OwnReplica
from pandal.supervisor import Supervisor

VARIANT: Final = "local"
STUCK_AFTER_S: Final = 600.0  # a model is fetched and compiled for in less

IsReady = Callable[[Address], Awaitable[bool | None]]  # None: no answer


class _Place:
    def __init__(self, replica: OwnReplica) -> None:
        self.replica = replica
        self.started_at_s: float | None = None
        self.cold_start_s: float | None = None  # None: not seen starting, or not ready yet
        self.heard_at_s: float | None = None  # said to be ready; None: not since it was started
        self.num_exits = 0  # of its process, as far as looked at
        self.cordoned_at_s: float | None = None
        self.released_to: int | None = None
        self.is_leaving = False

    @property
    def address(self) -> Address:
        return Address(self.replica.address.host, self.replica.port)

    def note_exits(self, num_exits: int, now_s: float) -> None:
        """Started again, it is not ready; one that ends again and again does not start anew."""
        if num_exits != self.num_exits and self.heard_at_s is not None:
            self.started_at_s, self.heard_at_s = now_s, None
        self.num_exits = num_exits

    def phase(self, is_ready: bool | None, now_s: float) -> Phase:
        assert self.started_at_s is not None, "an empty place has no phase"
        if self.is_leaving:
            return Phase.TERMINATING
        if is_ready:
            self._note_ready(now_s - self.started_at_s, now_s)
        if self.heard_at_s is None:
            return Phase.STARTING if now_s - self.started_at_s < STUCK_AFTER_S else Phase.STUCK
        if is_ready is False or now_s - self.heard_at_s >= STUCK_AFTER_S:
            return Phase.STUCK
        return Phase.READY if self.cordoned_at_s is None else Phase.DRAINING

    def _note_ready(self, age_s: float, now_s: float) -> None:
        if self.heard_at_s is None and self.num_exits == 0:
            self.cold_start_s = age_s
        self.heard_at_s = now_s


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
            place.started_at_s = place.heard_at_s = now_s()

    async def observe(self) -> ClusterView:
        self._settle()
        taken = [place for place in self._places if place.started_at_s is not None]
        answers = await asyncio.gather(*(self._is_ready(place.address) for place in taken))
        replicas = tuple(map(self._replica, taken, answers))
        starts = tuple(p.cold_start_s for p in taken if p.cold_start_s is not None)
        variant = VariantState(VARIANT, self._count, replicas, cold_starts_s=starts)
        addresses = {p.replica.name: p.address for p in taken if p.heard_at_s is not None}
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
        surplus = max(0, len(live) - self._count)
        for place in sorted(live, key=lambda p: p.released_to is None)[:surplus]:
            place.is_leaving = True
            self._supervisor.retire(place.replica.name)

    def _replica(self, place: _Place, is_ready: bool | None) -> Replica:
        now_s, name = self._now_s(), place.replica.name
        if self._has(place):
            place.note_exits(self._supervisor.num_exits(name), now_s)
        phase = place.phase(is_ready, now_s)
        return Replica(name, phase, None, place.cordoned_at_s, place.released_to)

    def _has(self, place: _Place) -> bool:
        return self._supervisor.has(place.replica.name)

    def _live(self, name: str) -> _Place:
        for place in self._places:
            if place.replica.name == name and not place.is_leaving:
                return place
        raise ClusterRefused(f"{name} is gone")
