"""Keeps the replica's own count of every request, in a folder that never grows beyond a bound.

Nobody waits for the disk: a thread writes, and when it cannot keep up, or the disk takes nothing,
records are lost, counted and said once.  See ``contracts.replica_usage``.
"""

import fcntl
import logging
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from contracts.errors import ContractError
from contracts.replica_usage import ReplicaUsage, encode_replica_usage
from contracts.spool import SEGMENT_SUFFIX, frame, parse_segment_name, segment_name

_MAX_QUEUED: Final = 10_000  # records, some 5 MB: minutes of a busy replica
_LATE: Final = 1_000  # so many wait only for a disk that hardly writes
_MAX_BATCH: Final = 500  # behind one write
_NUM_SEGMENTS: Final = 8  # of a full folder: so much goes at once when it is full
_MAX_FILES: Final = 256  # a replica that is started again and again leaves small ones
_RETRY_S: Final = 1.0

MakeRecord = Callable[[str, int], ReplicaUsage]  # from boot id and sequence number

logger = logging.getLogger(__name__)


class UsageJournal:
    """Used from one thread.  ``start`` it first, ``stop`` it last."""

    def __init__(self, folder: Path, *, boot_id: str, max_bytes: int) -> None:
        """``boot_id``: as ``contracts.spool`` has it.  No file is made before the first record."""
        self._boot_id = boot_id
        self._next_seq = 1
        self._queue: queue.SimpleQueue[ReplicaUsage | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._segments = _Segments(folder, boot_id, max_bytes)
        self._is_failing = False
        self._said: set[str] = set()  # of the outage that lasts, by the thread that appends
        self._num_left = 0
        self._num_overflown = 0  # this and the next: each changed by one thread only
        self._num_given_up = 0
        self.num_written = 0
        self._thread = threading.Thread(target=self._run, name="usage-journal", daemon=True)

    @property
    def num_lost(self) -> int:
        return self._num_overflown + self._num_given_up + self._num_left

    def start(self) -> None:
        self._thread.start()

    def append(self, make: MakeRecord) -> None:
        """Never waits and never fails."""
        record = make(self._boot_id, self._next_seq)
        self._next_seq += 1
        num_waiting = self._queue.qsize()
        if num_waiting >= _MAX_QUEUED:
            self._num_overflown += 1
            self._say_once("usage journal is full: records are lost")
            return
        self._queue.put(record)
        if num_waiting >= _LATE:  # a disk that hangs says nothing itself
            self._say_once("usage journal falls behind")
        elif num_waiting < _LATE // 2:
            self._said.clear()

    def stop(self, timeout_s: float) -> None:
        """Waits so long for what is not yet written; what is left then is lost."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout_s)
        num_known = self.num_written + self._num_overflown + self._num_given_up
        self._num_left = self._next_seq - 1 - num_known
        if self.num_lost > 0:
            logger.error("usage journal has lost records", extra={"num_events": self.num_lost})

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            logger.error(message)
            self._said.add(message)

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._write(batch)
        except Exception:
            logger.exception("usage journal failed")
        self._segments.close()

    def _next_batch(self) -> list[ReplicaUsage]:
        """Empty: that was all."""
        batch: list[ReplicaUsage] = []
        while len(batch) < _MAX_BATCH and not (batch and self._queue.empty()):
            record = self._queue.get()
            if record is None:
                self._queue.put(None)  # for the next call
                break
            batch.append(record)
        return batch

    def _write(self, batch: list[ReplicaUsage]) -> None:
        frames = [frame(encode_replica_usage(record)) for record in batch]
        for lines in _split(frames, self._segments.segment_bytes):
            self._write_at_once(lines)

    def _write_at_once(self, lines: list[bytes]) -> None:
        whole = b"".join(lines)
        while not self._try_to_write(whole):
            if self._stopping.wait(_RETRY_S):
                self._num_given_up += len(lines)
                return
        self.num_written += len(lines)

    def _try_to_write(self, lines: bytes) -> bool:
        try:
            self._segments.append(lines)
        except OSError as exc:
            if not self._is_failing:  # once per outage
                logger.error("usage journal cannot be written", extra={"error": str(exc)})  # noqa: TRY400 - no bug
            self._is_failing = True
            return False
        self._is_failing = False
        return True


class _Segments:
    """The folder: the segment that grows, and how many older ones are kept."""

    def __init__(self, folder: Path, boot_id: str, max_bytes: int) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._max_bytes = max_bytes
        self.segment_bytes = max_bytes // _NUM_SEGMENTS
        self._num_made = 0
        self._current: _Segment | None = None

    def append(self, lines: bytes) -> None:
        """All of them or none.  Raises OSError."""
        segment = self._current
        if (
            segment is None
            or segment.num_bytes + len(lines) > self.segment_bytes
            or not segment.is_in_place()
        ):
            segment = self._make_room_and_open(len(lines))
        try:
            segment.append(lines)
        except OSError:
            if not segment.is_sound:
                self.close()
            raise

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    def _make_room_and_open(self, num_bytes: int) -> "_Segment":
        self.close()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(num_bytes)
        try:
            self._current = _Segment(self._folder / segment_name(self._boot_id, self._num_made))
        except FileExistsError:
            self._num_made += 1  # never to be had: the next attempt takes the next name
            raise
        self._num_made += 1
        return self._current

    def _make_room(self, num_bytes: int) -> None:
        """For a whole segment, or for one larger record.  The oldest go first."""
        sizes = _segment_sizes(self._folder)
        left = self._max_bytes - max(num_bytes, self.segment_bytes)
        for path in list(sizes):
            if sum(sizes.values()) <= left and len(sizes) < _MAX_FILES:
                return
            if not _is_growing(path):
                path.unlink(missing_ok=True)
                del sizes[path]


class _Segment:
    """Locked for as long as it may grow."""

    def __init__(self, path: Path) -> None:
        self.num_bytes = 0
        self.is_sound = True  # False: what it ends with is anyone's guess
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a folder over a network may know no locks
            os.close(self._file)
            path.unlink(missing_ok=True)
            raise

    def is_in_place(self) -> bool:
        """Whoever removed it, or moved the folder, would have all that follows lost unsaid."""
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def append(self, lines: bytes) -> None:
        """Raises OSError; no part of ``lines`` is left then, if it is sound."""
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self.is_sound = False
            os.ftruncate(self._file, self.num_bytes)
            self.is_sound = True
            raise
        self.num_bytes += len(lines)

    def close(self) -> None:
        os.close(self._file)


def _split(frames: Sequence[bytes], max_bytes: int) -> Iterator[list[bytes]]:
    """In their order, each part within the bound; one frame alone may be larger."""
    part: list[bytes] = []
    num_bytes = 0
    for line in frames:
        if part and num_bytes + len(line) > max_bytes:
            yield part
            part, num_bytes = [], 0
        part.append(line)
        num_bytes += len(line)
    if part:
        yield part


def _segment_sizes(folder: Path) -> dict[Path, int]:
    """Of any boot, the oldest first.  Whatever else is in the folder is none of ours."""
    sizes: dict[Path, int] = {}
    for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}")):
        with suppress(FileNotFoundError):  # another one made room meanwhile
            found = path.lstat()
            if _is_segment(path.name) and stat.S_ISREG(found.st_mode):
                sizes[path] = found.st_size
    return sizes


def _is_segment(name: str) -> bool:
    try:
        parse_segment_name(name)
    except ContractError:
        return False
    return True


def _is_growing(path: Path) -> bool:
    """Somebody writes it: in a folder of one's own, nobody does."""
    try:
        # Not blocking, lest it has become a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's: who knows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
