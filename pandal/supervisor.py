"""All children of one launch: started in any order, watched together, stopped in order."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pandal.child import Child, ChildReports, ChildSpec, MonotonicSeconds, Sleep

NUM_EARLY_EXITS = 3  # before the fleet was ever ready: more would only hide the reason


class Supervisor:
    def __init__(
        self, reports: ChildReports, *, monotonic_s: MonotonicSeconds, sleep: Sleep
    ) -> None:
        self._reports = reports
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._children: dict[str, Child] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._was_ready = False
        self._changed = asyncio.Event()  # another task to watch

    def start(self, spec: ChildSpec) -> None:
        assert not self.has(spec.name), "one child of a name at a time"
        child = Child(
            spec,
            rule=self,
            reports=self._reports,
            monotonic_s=self._monotonic_s,
            sleep=self._sleep,
        )
        self._children[spec.name] = child
        self._tasks[spec.name] = asyncio.create_task(child.run(), name=f"child {spec.name}")
        self._changed.set()

    def mark_ready(self) -> None:
        """From now on a child is restarted however often it dies: others still serve."""
        self._was_ready = True

    def may_restart(self, num_exits: int) -> bool:
        return self._was_ready or num_exits < NUM_EARLY_EXITS

    async def watch(self) -> None:
        """Never returns; raises FleetFailed as soon as one child is given up."""
        while True:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait(
                    {changed, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                await _cancelled(changed)
            for name, task in list(self._tasks.items()):
                if task.done():
                    task.result()
                    self._forget(name)

    def retire(self, name: str) -> None:
        """Asks a child to end and lets it take its time: it is not started again."""
        self._children[name].request_stop()

    def has(self, name: str) -> bool:
        """Not once it was asked to end and has ended."""
        return name in self._tasks and not self._tasks[name].done()

    def num_exits(self, name: str) -> int:
        """How often it ended though nobody asked: after each it is started again."""
        return self._children[name].num_exits

    async def stop(self, names: Sequence[str], *, patience_s: float, hurry: asyncio.Event) -> None:
        """Ends the named children together: SIGTERM, and SIGKILL after ``patience_s``.

        ``hurry`` set, before or during, ends the patience.
        """
        chosen = [name for name in names if name in self._children]
        for name in chosen:
            self._children[name].request_stop()
        tasks = {self._tasks[name] for name in chosen}
        if not tasks:
            return
        await _ended(tasks, patience_s, hurry)
        for name in chosen:
            self._children[name].kill()
        # What a child was given up for has been raised by ``watch``; here it has only to end.
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, name: str) -> None:
        del self._tasks[name], self._children[name]


async def _ended(tasks: set[asyncio.Task[None]], patience_s: float, hurry: asyncio.Event) -> None:
    """Returns when they have, or when there is no patience left."""
    hurried = asyncio.ensure_future(hurry.wait())
    ended = asyncio.ensure_future(asyncio.wait(tasks))
    try:
        await asyncio.wait(
            {hurried, ended}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        await _cancelled(hurried, ended)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:  # Any: whatever they would have given
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
