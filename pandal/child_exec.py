"""Becomes another program, tied to its parent's life.

``python child_exec.py SIGNAL PARENT_PID PROGRAM ARGUMENT...``

The kernel sends SIGNAL to PROGRAM when the parent dies, however it dies: prctl(2),
PR_SET_PDEATHSIG, which survives execve(2).  A program of its own instead of a ``preexec_fn``:
that would run Python between fork and exec of a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    death_signal, parent_pid, program, *rest = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent_pid):
        sys.exit("the parent died before its child had started")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it; PROGRAM should decide
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
