"""A file whose reading or writing hangs, as on a file system that is away: a pipe in its place."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def hanging_writes(path: Path) -> Iterator[None]:
    """This process's own next write to the open file hangs until the block ends, and then fails."""
    descriptor = _descriptor_of(path)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write_end, True)
    os.dup2(write_end, descriptor)
    os.close(write_end)
    try:
        yield
    finally:
        os.close(read_end)


def _descriptor_of(path: Path) -> int:
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and entry.readlink() == path.resolve():
            return int(entry.name)
    raise AssertionError(f"{path} is not open")
