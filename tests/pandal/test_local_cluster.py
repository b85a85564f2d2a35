"""Places for processes: who starts, who goes, and what silence says of a replica."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from autoscaler.cluster import Address
from autoscaler.pool import Phase
from pandal.child import ChildSpec
from pandal.local_cluster import STUCK_AFTER_S, VARIANT, LocalCluster
from pandal.plan import OwnReplica
from pandal.supervisor import Supervisor

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


class Places:
    """Real processes that only live; what they answer to ``/ready`` is written here."""

    def __init__(self, reports: object, folder: Path, num_places: int, num_started: int) -> None:
        self.supervisor = Supervisor(
            reports,  # type: ignore[arg-type]  # the recorder of conftest
            monotonic_s=asyncio.get_running_loop().time,
            sleep=lambda _delay_s: asyncio.sleep(0),
        )
        self.supervisor.mark_ready()
        self.reports = reports
        self.folder = folder
        self.now_s = 1_800_000_000.0
        self.replicas = [OwnReplica(f"replica-{i}", 9000 + i) for i in range(num_places)]
        self.answers: dict[int, bool | None] = {}  # by port; none written: ready
        self.num_asked_at_once = 0
        self._num_asked = 0
        for replica in self.replicas[:num_started]:
            self.start(replica)
        self.cluster = LocalCluster(
            self.replicas,
            num_started,
            supervisor=self.supervisor,
            start=self.start,
            is_ready=self._is_ready,
            now_s=lambda: self.now_s,
        )

    def start(self, replica: OwnReplica) -> None:
        log = self.folder / f"{replica.name}.log"
        self.supervisor.start(ChildSpec(replica.name, SLEEPER, {}, log, signal.SIGKILL))

    async def phases(self) -> list[Phase]:
        (variant,) = (await self.cluster.observe()).variants
        return [replica.phase for replica in variant.replicas]

    async def _is_ready(self, address: Address) -> bool | None:
        self._num_asked += 1
        await asyncio.sleep(0)
        self.num_asked_at_once = max(self.num_asked_at_once, self._num_asked)
        self._num_asked -= 1
        return self.answers.get(address.port, True)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 - the state is another process's
            await asyncio.sleep(0.01)


@asynccontextmanager
async def places(
    reports: object, folder: Path, *, num_places: int, num_started: int
) -> AsyncIterator[Places]:
    made = Places(reports, folder, num_places, num_started)
    try:
        yield made
    finally:
        names = [r.name for r in made.replicas if made.supervisor.has(r.name)]
        await made.supervisor.stop(names, patience_s=0, hurry=asyncio.Event())


async def test_growing_retires_nobody(reports, tmp_path: Path) -> None:
    async with places(reports, tmp_path, num_places=4, num_started=2) as made:
        await made.cluster.set_count(VARIANT, seen=2, wanted=3)
        assert await made.phases() == [Phase.READY] * 3
        await made.cluster.set_count(VARIANT, seen=3, wanted=4)
        assert await made.phases() == [Phase.READY] * 4
        assert made.num_asked_at_once == 4


async def test_a_replica_that_is_too_busy_to_answer_stays_ready(reports, tmp_path: Path) -> None:
    async with places(reports, tmp_path, num_places=2, num_started=2) as made:
        assert await made.phases() == [Phase.READY, Phase.READY]
        made.answers[9001] = None
        made.now_s += 60.0
        assert await made.phases() == [Phase.READY, Phase.READY]
        made.answers[9001] = False  # it says so itself: it takes no requests
        assert await made.phases() == [Phase.READY, Phase.STUCK]
        made.answers[9001] = None
        made.now_s += STUCK_AFTER_S
        assert await made.phases() == [Phase.READY, Phase.STUCK]


async def test_a_replica_whose_process_ended_starts_again(reports, tmp_path: Path) -> None:
    async with places(reports, tmp_path, num_places=1, num_started=1) as made:
        assert await made.phases() == [Phase.READY]
        made.answers[9000] = None
        await until(lambda: len(reports.started_pids) == 1)
        os.kill(reports.started_pids[0][1], signal.SIGKILL)
        await until(lambda: made.supervisor.num_exits("replica-0") == 1)
        assert await made.phases() == [Phase.STARTING]
        made.now_s += 30.0
        made.answers[9000] = True
        (variant,) = (await made.cluster.observe()).variants
        assert [replica.phase for replica in variant.replicas] == [Phase.READY]
        assert variant.cold_starts_s == (), "the launcher's start was not seen, this one was warm"


async def test_a_cold_start_of_no_time_is_one(reports, tmp_path: Path) -> None:
    async with places(reports, tmp_path, num_places=2, num_started=1) as made:
        await made.cluster.set_count(VARIANT, seen=1, wanted=2)
        (variant,) = (await made.cluster.observe()).variants
        assert variant.cold_starts_s == (0.0,)
