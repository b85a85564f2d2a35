"""What becomes of replicas while a fleet serves: who is ready, ready again, gone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn

from pandal.plan import OwnReplica
from pandal.supervisor import Supervisor

_INTERVAL_S: Final = 0.5

IsReady = Callable[[OwnReplica], Awaitable[bool]]


class _Watched:
    def __init__(self, replica: OwnReplica, supervisor: Supervisor) -> None:
        self.replica = replica
        self.is_there = supervisor.has(replica.name)
        self.num_exits = supervisor.num_exits(replica.name) if self.is_there else 0
        self.awaited_since_s: float | None = None  # None: it has been ready since it was started


class ReplicaNews:
    """Deaths are told by whoever starts them again."""

    def __init__(
        self,
        replicas: Sequence[OwnReplica],
        supervisor: Supervisor,
        *,
        is_ready: IsReady,
        monotonic_s: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        """Those that run now are taken to be ready."""
        self._supervisor = supervisor
        self._is_ready = is_ready
        self._monotonic_s = monotonic_s
        self._tell = tell
        self._watched = [_Watched(replica, supervisor) for replica in replicas]

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        await asyncio.gather(*map(self._look_at, self._watched))

    async def _look_at(self, each: _Watched) -> None:
        name = each.replica.name
        self._note_process(each)
        if each.awaited_since_s is None or not await self._is_ready(each.replica):
            return
        if not self._supervisor.has(name) or self._supervisor.num_exits(name) != each.num_exits:
            return  # it has died meanwhile
        again = " again" if each.num_exits else ""
        after_s = self._monotonic_s() - each.awaited_since_s
        self._tell(f"{name} is ready{again} after {after_s:.0f} s")
        each.awaited_since_s = None

    def _note_process(self, each: _Watched) -> None:
        name = each.replica.name
        is_there = self._supervisor.has(name)
        if each.is_there and not is_there:
            each.num_exits, each.awaited_since_s = 0, None
            self._tell(f"{name} is gone")
        elif is_there and not each.is_there:
            each.awaited_since_s = self._monotonic_s()
        each.is_there = is_there
        num_exits = self._supervisor.num_exits(name) if is_there else 0
        if num_exits != each.num_exits and each.awaited_since_s is None:
            each.awaited_since_s = self._monotonic_s()
        each.num_exits = num_exits
