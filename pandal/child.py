"""One child process and its restarts."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pandal import child_exec
from pandal.child_log import last_error
from pandal.errors import FleetFailed

MonotonicSeconds = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
HEALTHY_UPTIME_S = 60.0

_FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    name: str
    command: tuple[str, ...]  # the program's absolute path first
    environment: Mapping[str, str]
    log_path: Path
    death_signal: signal.Signals  # what the kernel sends when the launcher dies


@dataclass(frozen=True, slots=True)
class ChildExit:
    name: str
    how: str  # "exited with code 1"
    uptime_s: float
    log_path: Path
    last_error: str | None  # as it stands in the log; None: it had no chance to write one

    def __str__(self) -> str:
        said = "" if self.last_error is None else f', saying "{self.last_error}"'
        return f"{self.name} {self.how}{said} (log: {self.log_path})"


class ChildReports(Protocol):
    """Told of what happens to children, as it happens."""

    def started(self, name: str, pid: int) -> None: ...

    def restarting(self, exit_: ChildExit, delay_s: float) -> None: ...


class RestartRule(Protocol):
    def may_restart(self, num_exits: int) -> bool: ...


class RestartBackoff:
    """Doubles from half a second to thirty; a healthy minute makes it forget."""

    def __init__(self) -> None:
        self._num_failures = 0

    def delay_after_s(self, uptime_s: float) -> float:
        if uptime_s >= HEALTHY_UPTIME_S:
            self._num_failures = 0
        # The exponent is capped too: 2.0 ** 1025 is an OverflowError, after a day of failures.
        delay_s = FIRST_DELAY_S * 2.0 ** min(self._num_failures, 16)
        self._num_failures += 1
        return min(delay_s, LONGEST_DELAY_S)


class Child:
    """Keeps one process running until told to stop.  ``run`` is its whole life."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        rule: RestartRule,
        reports: ChildReports,
        monotonic_s: MonotonicSeconds,
        sleep: Sleep,
    ) -> None:
        self.spec = spec
        self._rule = rule
        self._reports = reports
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._backoff = RestartBackoff()
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self.num_exits = 0  # that nobody asked for

    async def run(self) -> None:
        """Returns once stopped.  Raises FleetFailed when the rule forbids another start."""
        while not self._stopping.is_set():
            exit_ = await self._run_once()
            if self._stopping.is_set():
                return
            self.num_exits += 1
            if not self._rule.may_restart(self.num_exits):
                raise FleetFailed(str(exit_))
            delay_s = self._backoff.delay_after_s(exit_.uptime_s)
            self._reports.restarting(exit_, delay_s)
            await self._pause(delay_s)

    def request_stop(self) -> None:
        self._stopping.set()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            _kill_session(self._process.pid)

    async def _run_once(self) -> ChildExit:
        started_monotonic_s = self._monotonic_s()
        said = None
        try:
            exit_code = await self._live()
            how = _how_it_ended(exit_code)
            if exit_code > 0 or -exit_code in _FAULTS:  # else the last line tells of better days
                said = last_error(self.spec.log_path)
        except OSError as exc:  # no memory, no process or no file left on this machine, for now
            how = f"could not be started: {exc}"
        return ChildExit(
            name=self.spec.name,
            how=how,
            uptime_s=self._monotonic_s() - started_monotonic_s,
            log_path=self.spec.log_path,
            last_error=said,
        )

    async def _live(self) -> int:
        """The exit code; negative: minus a signal's number."""
        process = await _spawn(self.spec)
        self._process = process
        self._reports.started(self.spec.name, process.pid)
        if self._stopping.is_set():  # asked for while the process was being made
            self._send(signal.SIGTERM)
        exit_code = await process.wait()
        _kill_session(process.pid)  # such as a download that its parent has not taken along
        return exit_code

    def _send(self, signal_: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal_)

    async def _pause(self, delay_s: float) -> None:
        """Sleeps, or until asked to stop."""
        sleeping = asyncio.ensure_future(self._sleep(delay_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            stopping.cancel()
            await asyncio.gather(sleeping, stopping, return_exceptions=True)


def _kill_session(leader_pid: int) -> None:
    """A service may have processes of its own.  None left: there is no such group any more."""
    with suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    names = {int(each): each.name for each in signal.Signals}
    return f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"


async def _spawn(spec: ChildSpec) -> asyncio.subprocess.Process:
    """From the main thread only: the kernel takes the *thread* that forks for the parent."""
    wrapper = (sys.executable, "-I", "-S", child_exec.__file__)
    with spec.log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *wrapper,
            str(int(spec.death_signal)),
            str(os.getpid()),
            *spec.command,
            env=dict(spec.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the terminal's Ctrl-C is for the launcher alone
        )
