"""The reading side of the spool, for shipping it elsewhere: whole lines, and how far they went.

A checkpoint says how much of a segment has been shipped.  It is written after the other side has
acknowledged, so a crash in between ships some lines twice and none never.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.spool import SEGMENT_SUFFIX, parse_segment_name

_CHECKPOINT_FOLDER = "shipped"


class SegmentFile:
    """One segment of any boot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot_id, self.index = parse_segment_name(path.name)
        self._checkpoint = path.parent / _CHECKPOINT_FOLDER / (path.name + ".offset")

    def shipped_bytes(self) -> int:
        try:
            return int(self._checkpoint.read_text())
        except FileNotFoundError:
            return 0

    def read_lines(self, offset_bytes: int, max_bytes: int) -> list[bytes]:
        """Whole lines from there on, newlines included; a torn last line is not returned."""
        with self.path.open("rb") as file:
            file.seek(offset_bytes)
            block = file.read(max_bytes)
            if b"\n" not in block:
                block += file.readline()  # one line longer than the block
        return block[: block.rfind(b"\n") + 1].splitlines(keepends=True)

    def record_shipped(self, num_bytes: int) -> None:
        self._checkpoint.parent.mkdir(mode=0o700, exist_ok=True)
        written = self._checkpoint.with_suffix(".new")
        written.write_text(str(num_bytes))
        written.replace(self._checkpoint)

    def set_aside(self, line: bytes) -> None:
        """Keeps a line that cannot be shipped, for people to look at."""
        with self.path.with_suffix(".corrupt").open("ab") as file:
            file.write(line)

    def remove(self) -> None:
        """The segment first: a checkpoint without one is harmless."""
        self.path.unlink()
        self._checkpoint.unlink(missing_ok=True)

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """True, for as long as the block runs, if no living process writes or ships it."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_claimed = True
            except BlockingIOError:
                is_claimed = False
            yield is_claimed
        finally:
            os.close(descriptor)


def segments_of(folder: Path) -> list[SegmentFile]:
    """In the order of writing."""
    return [SegmentFile(path) for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))]
