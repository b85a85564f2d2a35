"""What becomes of a fleet's children while it serves: who is ready, ready again, gone."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn

from pandal.supervisor import Supervisor

_INTERVAL_S: Final = 0.5

IsReady = Callable[[], Awaitable[bool]]


class _Watched:
    def __init__(self, name: str, is_ready: IsReady, supervisor: Supervisor) -> None:
        self.name = name
        self.is_ready = is_ready
        self.is_there = supervisor.has(name)
        self.num_exits = supervisor.num_exits(name) if self.is_there else 0
        self.awaited_since_s: float | None = None  # None: it has been ready since it was started


class FleetNews:
    """Deaths are told by whoever starts them again."""

    def __init__(
        self,
        children: Mapping[str, IsReady],
        supervisor: Supervisor,
        *,
        monotonic_s: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        """By name.  Those that run now are taken to be ready."""
        self._supervisor = supervisor
        self._monotonic_s = monotonic_s
        self._tell = tell
        self._watched = [_Watched(*child, supervisor) for child in children.items()]

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        await asyncio.gather(*map(self._look_at, self._watched))

    async def _look_at(self, each: _Watched) -> None:
        name = each.name
        self._note_process(each)
        if each.awaited_since_s is None or not await each.is_ready():
            return
        if not self._supervisor.has(name) or self._supervisor.num_exits(name) != each.num_exits:
            return  # it has died meanwhile
        again = " again" if each.num_exits else ""
        after_s = self._monotonic_s() - each.awaited_since_s
        self._tell(f"{name} is ready{again} after {after_s:.0f} s")
        each.awaited_since_s = None

    def _note_process(self, each: _Watched) -> None:
        name = each.name
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
