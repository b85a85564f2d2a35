"""A file that is replaced whole: durable when that returns, and its owner's alone.

A reader sees the old content or the new, never a part.  Blocking.
"""

import os
from pathlib import Path


def replace_durably(path: Path, payload: bytes) -> None:
    """Writers in several processes may do it at once: the last one's content stays, whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
