"""Files only their owner may read, replaced whole or not at all."""

import os
from pathlib import Path

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
