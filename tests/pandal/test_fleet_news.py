"""Real child processes that die, come back and leave; what is ready is the test's to say."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pandal.child import ChildSpec
from pandal.fleet_news import FleetNews
from pandal.supervisor import Supervisor

PATIENCE_S = 60.0
WAIT_FOREVER = "import signal; signal.pause()"

MakeChild = Callable[..., ChildSpec]


class Watch:
    """One place, and a clock of the test's own."""

    def __init__(self, reports: object) -> None:
        self.supervisor = Supervisor(
            reports,  # type: ignore[arg-type]  # the recorder of conftest
            monotonic_s=asyncio.get_running_loop().time,
            sleep=asyncio.sleep,
        )
        self.supervisor.mark_ready()
        self.now_s = 100.0
        self.is_ready = True
        self.told: list[str] = []

    def begin(self) -> FleetNews:
        return FleetNews(
            {"replica-0": self._ready},
            self.supervisor,
            monotonic_s=lambda: self.now_s,
            tell=self.told.append,
        )

    async def _ready(self) -> bool:
        return self.is_ready


@asynccontextmanager
async def watching(reports: object) -> AsyncIterator[Watch]:
    watch = Watch(reports)
    try:
        yield watch
    finally:
        await watch.supervisor.stop(["replica-0"], patience_s=0, hurry=asyncio.Event())


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - the state is another process's
            await asyncio.sleep(0.01)


async def test_who_died_is_told_of_when_it_is_ready_again(reports, python_child: MakeChild) -> None:
    async with watching(reports) as watch:
        watch.supervisor.start(python_child(WAIT_FOREVER, "replica-0"))
        await until(lambda: len(reports.started_pids) == 1)
        news = watch.begin()
        await news.look()
        assert watch.told == []
        os.kill(reports.started_pids[0][1], signal.SIGKILL)
        await until(lambda: len(reports.restarts) == 1)
        watch.is_ready = False
        await news.look()
        watch.now_s += 21
        await news.look()
        assert watch.told == []
        watch.is_ready = True
        await news.look()
        await news.look()
        assert watch.told == ["replica-0 is ready again after 21 s"]


async def test_one_that_comes_and_goes_is_told_of(reports, python_child: MakeChild) -> None:
    async with watching(reports) as watch:
        news = watch.begin()
        watch.supervisor.start(python_child(WAIT_FOREVER, "replica-0"))
        await until(lambda: len(reports.started_pids) == 1)
        watch.is_ready = False
        await news.look()
        watch.now_s += 9
        watch.is_ready = True
        await news.look()
        assert watch.told == ["replica-0 is ready after 9 s"]
        watch.supervisor.retire("replica-0")
        await until(lambda: not watch.supervisor.has("replica-0"))
        await news.look()
        await news.look()
        assert watch.told[1:] == ["replica-0 is gone"]
