"""Which process a pid means: pids are reused, a pid with its start time is not.  Linux only."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

_START_TICKS_FIELD = 19  # of /proc/PID/stat, counted behind the command name; proc(5)


class ProcessId(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    start_ticks: int  # since boot


def identify(pid: int) -> ProcessId | None:
    """``None``: there is no such process, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold blanks and parentheses: fields count from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in {b"Z", b"X"}:
        return None
    return ProcessId(pid=pid, start_ticks=int(fields[_START_TICKS_FIELD]))


def is_alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def wait_gone_or_kill(process: ProcessId, *, patience_s: float) -> None:
    """Waits for a process that is already on its way out; kills it if it is not.

    By a descriptor of the process: its pid may be another's by the time the signal is sent.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not is_alive(process):
            return
        if not _has_ended(descriptor, timeout_s=patience_s):
            with suppress(ProcessLookupError):  # it has, just now
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _has_ended(descriptor, timeout_s=None)
    finally:
        os.close(descriptor)


def _has_ended(descriptor: int, *, timeout_s: float | None) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])
