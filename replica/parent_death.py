"""A child's life tied to its parent's, however the parent ends."""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """Killed by the kernel with the parent, or right now if that has happened already.

    Survives execve(2): whatever this process becomes dies with the parent, too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit("the parent process is gone")
