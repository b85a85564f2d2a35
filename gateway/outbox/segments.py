"""The reading side of the spool, for shipping it elsewhere: whole lines, and how far they went.

A checkpoint says how much of a segment has been shipped.  It is written after the other side has
acknowledged, so a crash in between ships some lines twice and none never.
"""

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import ContractError
from contracts.spool import SEGMENT_SUFFIX, parse_segment_name, told_mark, was_locked
from gateway.errors import SegmentUnreadable

logger = logging.getLogger(__name__)

_CHECKPOINT_FOLDER = "shipped"
_COUNT_BYTES = 1 << 20
OWED_S = 86_400.0  # so long the quota store knows a reservation


class SegmentFile:
    """One segment of any boot."""

    def __init__(self, path: Path) -> None:
        """Raises ContractError for a path that does not name a segment."""
        self.path = path
        self.boot_id, self.index = parse_segment_name(path.name)
        self._checkpoint = path.parent / _CHECKPOINT_FOLDER / (path.name + ".offset")
        self._told_mark = told_mark(path)

    def shipped_bytes(self) -> int:
        """Zero if there is no checkpoint, or none that can be right: better twice than never."""
        try:
            num_bytes = int(self._checkpoint.read_bytes())
        except (FileNotFoundError, ValueError):
            return 0
        return num_bytes if 0 <= num_bytes <= self.path.stat().st_size else 0

    def read_lines(self, offset_bytes: int, max_bytes: int) -> list[bytes]:
        """Whole lines from there on, newlines included; a torn last line is not returned.

        Raises SegmentUnreadable; FileNotFoundError where it has been removed.
        """
        try:
            with os.fdopen(_opened(self.path), "rb") as file:
                file.seek(offset_bytes)
                block = file.read(max_bytes)
                if b"\n" not in block:
                    block += file.readline()  # one line longer than the block
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise SegmentUnreadable(exc.errno, exc.strerror) from exc
        return block[: block.rfind(b"\n") + 1].splitlines(keepends=True)

    def num_unshipped(self) -> int:
        """Events that nobody else has."""
        offset_bytes, num_lines = self.shipped_bytes(), 0
        while lines := self.read_lines(offset_bytes, _COUNT_BYTES):
            num_lines += len(lines)
            offset_bytes += sum(map(len, lines))
        return num_lines

    def record_shipped(self, num_bytes: int) -> None:
        self._checkpoint.parent.mkdir(mode=0o700, exist_ok=True)
        written = self._checkpoint.with_suffix(".new")
        with written.open("wb") as file:
            file.write(b"%d" % num_bytes)
            file.flush()
            os.fsync(file.fileno())  # or a power cut leaves an empty file under the new name
        written.replace(self._checkpoint)

    def may_owe(self, now_s: float) -> bool:
        """Whether the quota store may still have to be told of what a dead writer settled."""
        try:
            age_s = now_s - self.path.stat().st_mtime
        except FileNotFoundError:
            return False
        return age_s < OWED_S and not self._told_mark.exists()

    def record_told(self) -> None:
        """Not synced: told twice does no harm."""
        self._told_mark.parent.mkdir(mode=0o700, exist_ok=True)
        self._told_mark.touch()

    def set_aside(self, line: bytes) -> None:
        """Keeps a line that cannot be shipped, for people to look at."""
        with self.path.with_suffix(".corrupt").open("ab") as file:
            file.write(line)

    def remove(self) -> None:
        """The segment first: what is beside it is harmless alone."""
        self.path.unlink()
        self._checkpoint.unlink(missing_ok=True)
        self._told_mark.unlink(missing_ok=True)

    @contextmanager
    def claimed(self, now_s: float) -> Iterator[bool]:
        """True, for as long as the block runs, if no living process writes or ships it.

        Raises SegmentUnreadable.
        """
        try:
            descriptor = _opened(self.path)
        except FileNotFoundError:
            yield False  # shipped and removed by another gateway
            return
        except OSError as exc:
            raise SegmentUnreadable(exc.errno, exc.strerror) from exc
        try:
            status = os.fstat(descriptor)
            is_old = was_locked(status.st_size, now_s - status.st_mtime)
            yield is_old and _is_lockable(descriptor)
        finally:
            os.close(descriptor)


class SegmentFaults:
    """Segments that could not be read: each is told once, however often it is tried."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, segment: SegmentFile, exc: OSError) -> None:
        name = segment.path.name
        if name not in self._told:
            self._told.add(name)
            fields = {"segment": name, "error": exc.strerror}
            logger.error("a spool segment cannot be read, the others are", extra=fields)


def _opened(path: Path) -> int:
    """Raises OSError, also for what is no file; to open a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file")
    return descriptor


def _is_lockable(descriptor: int) -> bool:
    """It is locked then, until the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def segments_of(folder: Path) -> list[SegmentFile]:
    """In the order of writing.  Other files in the folder are none of ours."""
    paths = sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))
    return [SegmentFile(path) for path in paths if _is_segment(path.name)]


def _is_segment(name: str) -> bool:
    try:
        parse_segment_name(name)
    except ContractError:
        return False
    return True
