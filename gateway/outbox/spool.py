"""The durable spool: a usage event is on disk before its request ends.

Group commit: the event loop hands over whatever has gathered while the last batch was being
written; one thread writes and syncs.  An event is committed when it would survive a power cut.
A batch that cannot be written is tried again for as long as the process lives, in order, so
sequence numbers have no gaps.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import queue
import threading
from pathlib import Path

from contracts.spool import frame, segment_name
from gateway.backoff import backoff_s
from gateway.completion import Broadcast
from gateway.errors import SpoolUnavailable

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.05, 0.1, 0.25, 0.5, 1.0)
_MAX_GATHERED_EVENTS = 20_000  # behind one write; seconds of full load, some 15 MB


class _Batch:
    since_s = 0.0  # of its oldest event, on the event loop's clock

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.committed: Broadcast[None] = Broadcast()


class Segment:
    """One append-only file, locked by its writer for as long as it may grow."""

    def __init__(self, folder: Path, name: str) -> None:
        self.num_bytes = 0
        self.is_sound = True
        self._path = folder / name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(folder)  # or the name itself could be lost
        except OSError:
            os.close(self._file)
            raise

    def append(self, lines: bytes) -> None:
        """On disk when it returns.  Raises OSError; ``is_sound`` tells whether to go on here."""
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self.is_sound = False
            os.ftruncate(self._file, self.num_bytes)
            self.is_sound = True
            raise
        self.is_sound = False  # what a failed sync left on disk is anyone's guess
        os.fdatasync(self._file)
        self._check_still_there()
        self.is_sound = True
        self.num_bytes += len(lines)

    def close(self) -> None:
        os.close(self._file)

    def _check_still_there(self) -> None:
        """Raises OSError if readers would not find what was written: file deleted, folder moved."""
        if not os.path.samestat(self._path.stat(), os.fstat(self._file)):
            raise FileNotFoundError(errno.ENOENT, "another file has taken the segment's place")


def _not_in_time() -> SpoolUnavailable:
    return SpoolUnavailable("The usage of this request could not be recorded in time.")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Spool:
    """Open it with ``start``, close it with ``stop``.  Used from the event loop's thread only."""

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        segment_bytes: int,
        *,
        hold_s: float = 5.0,
        gather_s: float = 0.0,
    ) -> None:
        """``hold_s``: how long an event may take before its waiter is told so.

        ``gather_s``: how long to wait for more events before a write; zero: one tick of the loop.
        """
        self._folder = folder
        self._boot_id = boot_id
        self._segment_bytes = segment_bytes
        self._hold_s, self._gather_s = hold_s, gather_s
        self._loop = asyncio.get_running_loop()
        self._gathered = _Batch()
        self._writing: _Batch | None = None
        self._hold_check: asyncio.TimerHandle | None = None
        self._is_idle = True  # nothing gathers, and nothing is being written
        self._all_written: asyncio.Event | None = None  # set while somebody waits for it
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._write_batches, name="spool-writer", daemon=True
        )
        self.next_seq = 1
        self._segment: Segment | None = None  # the writer thread's own
        self._num_segments = 0
        self.num_committed = 0
        self.is_behind = False  # cannot write, or not in time
        self.is_held_back = False  # too much waits to be shipped

    @property
    def is_failing(self) -> bool:
        """Nothing new should be admitted."""
        return self.is_behind or self.is_held_back

    def start(self) -> None:
        """Raises OSError if the folder cannot be written to."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open_segment()
        self._thread.start()

    def append(self, event: bytes) -> Broadcast[None]:
        """Writes the event that bears ``next_seq``.

        Fails with SpoolUnavailable when that takes too long; it is written all the same.
        """
        line = frame(event)
        self.next_seq += 1
        gathered = self._gathered
        if not gathered.lines:
            gathered.since_s = self._loop.time()
        gathered.lines.append(line)
        if len(gathered.lines) == _MAX_GATHERED_EVENTS:
            self._fall_behind()
        if self._is_idle:
            self._is_idle = False
            self._hand_over_soon()
        return gathered.committed

    def hold_back(self, is_full: bool) -> None:
        """Whether there is room for more; what was admitted before is written all the same."""
        if is_full == self.is_held_back:
            return
        self.is_held_back = is_full
        if is_full:
            logger.error("spool is full: too much waits to be shipped")
        else:
            logger.info("spool has room again")

    async def stop(self, timeout_s: float) -> int:
        """Waits for open events; returns how many could not be written."""
        if not self._is_idle:
            self._all_written = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_written.wait()
        if self._num_open():
            logger.error("usage events left unwritten", extra={"num_events": self._num_open()})
        self._stopping.set()
        self._batches.put(None)
        if self._hold_check is not None:
            self._hold_check.cancel()
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():  # a daemon: the process ends without it
            logger.error("spool writer does not stop, the disk hangs")
        return self._num_open()

    def _num_open(self) -> int:
        return self.next_seq - 1 - self.num_committed

    def _hand_over_soon(self) -> None:
        if self._gather_s == 0:
            self._loop.call_soon(self._hand_over)  # the rest of this tick's events come along
        else:
            self._loop.call_later(self._gather_s, self._hand_over)

    def _hand_over(self) -> None:
        self._writing, self._gathered = self._gathered, _Batch()
        self._batches.put(self._writing)
        if self._hold_check is None:
            self._check_hold()

    def _committed(self, batch: _Batch) -> None:
        self.is_behind = False
        self.num_committed += len(batch.lines)
        self._writing = None
        if self._gathered.lines:
            self._hand_over_soon()
        else:
            self._is_idle = True
            if self._all_written is not None:
                self._all_written.set()
        batch.committed.resolve(None)

    def _check_hold(self) -> None:
        """Looks at both batches now and then, instead of a timer per event."""
        self._hold_check = None
        latest_s = self._loop.time() - self._hold_s
        waiting = [batch for batch in (self._writing, self._gathered) if batch and batch.lines]
        late = [batch for batch in waiting if batch.since_s <= latest_s]
        if late:
            self._fall_behind()
        for batch in late:
            batch.committed.fail(_not_in_time)
        if waiting:
            self._hold_check = self._loop.call_later(self._hold_s / 8, self._check_hold)

    def _fall_behind(self) -> None:
        """Until the next batch is committed nobody new should be admitted."""
        if not self.is_behind:
            self.is_behind = True
            logger.error("spool is not written in time", extra={"num_events": self._num_open()})

    # The writer thread

    def _write_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            if self._write(b"".join(batch.lines)):
                self._loop.call_soon_threadsafe(self._committed, batch)
        self._close_segment()

    def _write(self, lines: bytes) -> bool:
        """False only if the spool was stopped while it could not write."""
        failures = 0
        while not self._stopping.is_set():
            try:
                self._append(lines)
            except OSError as exc:
                if self._segment is not None and not self._segment.is_sound:
                    self._close_segment()
                if failures == 0:
                    self._begin_failing(exc)
                failures += 1
                self._stopping.wait(backoff_s(_BACKOFF_S, failures))
            else:
                return True
        return False

    def _begin_failing(self, exc: OSError) -> None:
        self.is_behind = True
        logger.error("spool cannot be written", extra={"error": exc.strerror})

    def _append(self, lines: bytes) -> None:
        if self._segment is not None and self._segment.num_bytes >= self._segment_bytes:
            self._close_segment()
        if self._segment is None:
            self._open_segment()
        assert self._segment is not None
        self._segment.append(lines)

    def _open_segment(self) -> None:
        name = segment_name(self._boot_id, self._num_segments)
        self._num_segments += 1  # also after a failure: its name may be on disk
        self._segment = Segment(self._folder, name)

    def _close_segment(self) -> None:
        """The next write opens the next one; readers ignore a torn end before it."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
