"""Which process a pid means: pids are reused, a pid with its start time is not.  Linux only."""

import os
import signal
import time
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
    """Waits for a process that is already on its way out; kills it if it is not."""
    give_up_monotonic_s = time.monotonic() + patience_s
    while is_alive(process):
        if time.monotonic() >= give_up_monotonic_s:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)
