"""One editor at a time for a file that is replaced whole."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Excludes every other holder of ``path``'s lock; waits for its turn (edits take milliseconds).

    The lock is a file beside ``path``: replacing ``path`` would replace a lock on itself.
    """
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
