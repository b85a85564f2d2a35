"""A file whose reading hangs, as on a file system that is away: a pipe in its place."""

import asyncio
import os
from pathlib import Path


def replace_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


async def wait_for_reader(pipe: Path) -> int:
    """A descriptor to write to, once somebody hangs in reading; and the event loop does not."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # as long as nobody reads
            await asyncio.sleep(0)
