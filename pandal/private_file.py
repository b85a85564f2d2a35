"""Files only their owner may read: replaced whole or not at all, by one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pandal.datadir import DataDir
from pandal.errors import PreflightFailed

_MODE = 0o600


def replace_private(path: Path, payload: bytes) -> None:
    """Durable when it returns.  A reader sees the old content or the new, never a part.

    Writers of one path must exclude each other: they share the temporary name, so that a
    killed writer leaves at most one stray file.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(file.fileno(), _MODE)
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames and creations inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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


@contextmanager
def exclusive(data_dir: DataDir) -> Iterator[None]:
    """Holds the data directory for this process; the kernel lets go when the process dies.

    Raises PreflightFailed, naming the process that holds it.
    """
    fd = os.open(data_dir.lock, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(fd, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = file.read(32).decode("ascii", "replace").strip() or "unknown"
            raise PreflightFailed(
                f"data directory {data_dir.root} is in use by another 'pandal up' (pid {holder})"
            ) from exc
        file.truncate(0)
        file.write(b"%d\n" % os.getpid())
        file.flush()
        yield
