"""Real child processes; the pauses between restarts are on a clock of the test's own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pandal.child import ChildSpec
from pandal.errors import FleetFailed
from pandal.processes import identify
from pandal.supervisor import Supervisor

PATIENCE_S = 60.0
WAIT_FOREVER = "import signal; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
FAILING = "import sys; sys.exit('out of luck')"
REASON = r'^replica-0 exited with code 1, saying "out of luck" \(log: .*\)$'

MakeChild = Callable[..., ChildSpec]


class Clock:
    """Monotonic seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.sleeps_s.append(delay_s)
        self.now_s += delay_s
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def running(supervisor: Supervisor, *specs: ChildSpec) -> AsyncIterator[Supervisor]:
    for spec in specs:
        supervisor.start(spec)
    try:
        yield supervisor
    finally:
        await stop(supervisor, *(spec.name for spec in specs), patience_s=0)


async def stop(supervisor: Supervisor, *names: str, patience_s: float = PATIENCE_S) -> None:
    await supervisor.stop(names, patience_s=patience_s, hurry=asyncio.Event())


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - the state is another process's
            await asyncio.sleep(0.01)


async def is_up(spec: ChildSpec) -> None:
    await until(lambda: spec.log_path.exists() and "up" in spec.log_path.read_text())


async def test_a_child_that_dies_is_started_again(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    supervisor.mark_ready()
    async with running(supervisor, python_child(WAIT_FOREVER)):
        await until(lambda: len(reports.started_pids) == 1)
        await is_up(python_child(WAIT_FOREVER))
        os.kill(reports.started_pids[0][1], signal.SIGKILL)
        await until(lambda: len(reports.started_pids) == 2)
    exit_, delay_s = reports.restarts[0]
    assert str(exit_) == f"child was ended by SIGKILL (log: {exit_.log_path})"
    assert delay_s == 0.5


async def test_restarts_of_a_ready_fleet_back_off_to_half_a_minute(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    supervisor.mark_ready()
    async with running(supervisor, python_child(FAILING)):
        await until(lambda: len(reports.restarts) >= 9)
    assert [delay for _, delay in reports.restarts[:9]] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


async def test_a_child_that_never_gets_up_is_given_up_with_its_reason(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    async with running(supervisor, python_child(FAILING, "replica-0")):
        with pytest.raises(FleetFailed, match=REASON):
            await supervisor.watch()
    assert len(reports.started_pids) == 3


async def test_a_program_that_is_not_there_is_given_up_with_its_reason(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    spec = replace(python_child(""), command=("/no/such/program",))
    async with running(supervisor, spec):
        with pytest.raises(FleetFailed, match="No such file or directory"):
            await supervisor.watch()


async def test_a_child_whose_log_cannot_be_written_is_tried_again(
    reports, clock: Clock, python_child: MakeChild, tmp_path: Path
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    supervisor.mark_ready()
    folder = tmp_path / "logs"
    spec = replace(python_child(WAIT_FOREVER), log_path=folder / "child.log")
    async with running(supervisor, spec):
        await until(lambda: len(reports.restarts) > 0)
        folder.mkdir()
        await is_up(spec)
    assert "could not be started" in reports.restarts[0][0].how


async def test_stop_returns_once_the_processes_are_gone(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    first, second = python_child(WAIT_FOREVER, "first"), python_child(WAIT_FOREVER, "second")
    async with running(supervisor, first, second):
        await is_up(first)
        await is_up(second)
        await stop(supervisor, "first")
        pids = dict(reports.started_pids)
        assert identify(pids["first"]) is None
        assert identify(pids["second"]) is not None
    assert reports.processes() == []
    assert reports.restarts == []


async def test_a_child_deaf_to_sigterm_is_killed(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    spec = python_child(DEAF)
    async with running(supervisor, spec):
        await is_up(spec)
        await stop(supervisor, "child", patience_s=0.1)
        assert reports.processes() == []


async def test_what_a_child_leaves_behind_ends_with_it(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    source = (
        "import subprocess, sys, signal; "
        f"child = subprocess.Popen((sys.executable, '-I', '-c', {WAIT_FOREVER!r})); "
        "print('pid', child.pid, 'up', flush=True); signal.pause()"
    )
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    spec = python_child(source)
    async with running(supervisor, spec):
        await until(lambda: spec.log_path.exists() and "pid" in spec.log_path.read_text())
        grandchild = int(spec.log_path.read_text().split("pid ")[1].split()[0])
        assert identify(grandchild) is not None
        await stop(supervisor, "child")
        await until(lambda: identify(grandchild) is None)


async def test_watching_and_stopping_leave_no_task_behind(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    before = asyncio.all_tasks()
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    supervisor.start(python_child(FAILING))
    with pytest.raises(FleetFailed):
        await supervisor.watch()
    assert asyncio.all_tasks() == before
    await stop(supervisor, "child")
    assert asyncio.all_tasks() == before


async def test_hurry_ends_a_patient_stop(reports, clock: Clock, python_child: MakeChild) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    spec = python_child(DEAF)
    async with running(supervisor, spec):
        await is_up(spec)
        hurry = asyncio.Event()
        stopping = asyncio.create_task(supervisor.stop(["child"], patience_s=3_600, hurry=hurry))
        await asyncio.sleep(0)
        hurry.set()
        async with asyncio.timeout(PATIENCE_S):
            await stopping


async def test_stop_during_a_pause_before_a_restart_starts_nothing(
    reports, python_child: MakeChild
) -> None:
    async def sleep_forever(_delay_s: float) -> None:
        await asyncio.Event().wait()

    supervisor = Supervisor(reports, monotonic_s=lambda: 0.0, sleep=sleep_forever)
    async with running(supervisor, python_child(FAILING)):
        await until(lambda: len(reports.restarts) == 1)
        async with asyncio.timeout(PATIENCE_S):
            await stop(supervisor, "child")
    assert len(reports.started_pids) == 1


async def test_children_get_no_signal_of_the_terminal(
    reports, clock: Clock, python_child: MakeChild
) -> None:
    supervisor = Supervisor(reports, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    spec = python_child(WAIT_FOREVER)
    async with running(supervisor, spec):
        await is_up(spec)
        pid = reports.started_pids[0][1]
        assert os.getpgid(pid) == pid != os.getpgid(os.getpid())
