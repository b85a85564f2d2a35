"""Keeps the replica's own count of every request, in a folder that never grows beyond a bound.

Nobody waits for the disk: a thread writes, and when it cannot keep up, or the disk takes nothing,
records are lost, counted and said once.  See ``contracts.replica_usage``.
"""

import fcntl
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contracts.errors import ContractError
from contracts.replica_usage import ReplicaUsage, encode_replica_usage
from contracts.spool import SEGMENT_SUFFIX, frame, parse_segment_name, segment_name

_MAX_QUEUED: Final = 10_000  # records, some 5 MB: minutes of a busy replica
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
        self._num_overflown = 0  # this and the next: each changed by one thread only
        self._num_given_up = 0
        self.num_written = 0
        self._thread = threading.Thread(target=self._run, name="usage-journal", daemon=True)

    @property
    def num_lost(self) -> int:
        return self._num_overflown + self._num_given_up

    def start(self) -> None:
        self._thread.start()

    def append(self, make: MakeRecord) -> None:
        """Never waits and never fails."""
        record = make(self._boot_id, self._next_seq)
        self._next_seq += 1
        if self._queue.qsize() >= _MAX_QUEUED:
            self._num_overflown += 1
        else:
            self._queue.put(record)

    def stop(self, timeout_s: float) -> None:
        """Waits so long for what is not yet written."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout_s)

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
        lines = b"".join(frame(encode_replica_usage(record)) for record in batch)
        while not self._try_to_write(lines):
            if self._stopping.wait(_RETRY_S):
                self._num_given_up += len(batch)
                return
        self.num_written += len(batch)

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
        self._num_made = 0
        self._current: _Segment | None = None

    def append(self, lines: bytes) -> None:
        """All of them or none.  Raises OSError."""
        segment = self._current
        if segment is None or segment.num_bytes + len(lines) > self._max_bytes // _NUM_SEGMENTS:
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
        name = segment_name(self._boot_id, self._num_made)
        self._num_made += 1
        self._current = _Segment(self._folder / name)
        return self._current

    def _make_room(self, num_bytes: int) -> None:
        """For a whole segment, or for one larger batch.  The oldest go first."""
        sizes = {path: path.stat().st_size for path in sorted(_segment_paths(self._folder))}
        left = self._max_bytes - max(num_bytes, self._max_bytes // _NUM_SEGMENTS)
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
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

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


def _segment_paths(folder: Path) -> list[Path]:
    """Of any boot.  Other files in the folder are none of ours."""
    return [path for path in folder.glob(f"*{SEGMENT_SUFFIX}") if _is_segment(path.name)]


def _is_segment(name: str) -> bool:
    try:
        parse_segment_name(name)
    except ContractError:
        return False
    return True


def _is_growing(path: Path) -> bool:
    """Somebody writes it: in a folder of one's own, nobody does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
