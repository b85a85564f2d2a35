"""All that the process logs, to one file descriptor, many lines at a time, by a thread of its own.

Nobody waits for whoever reads the log, and no line is torn by another, because nobody else writes
there, unless in turn.  When the reader is too far behind, lines are dropped and counted, and the
log tells how many: a log must not become a memory leak.
"""

import contextlib
import fcntl
import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

_GATHER_S = 0.05  # a reader of the log does not notice; a busy gateway writes hundreds at once
_MAX_PENDING_BYTES = 16 * 1024 * 1024
_CLOSE_S = 5.0  # for a reader who is slow; one who hangs must not keep the process


class LineWriter(logging.Handler):
    """For loggers a handler; ``write`` takes lines that are formatted already.

    Used from any thread.  ``close`` writes what is left: ``logging`` calls it as the process ends.
    """

    def __init__(
        self,
        descriptor: int,
        max_pending_bytes: int = _MAX_PENDING_BYTES,
        shared_lock: Path | None = None,
    ) -> None:
        """``shared_lock``: a file that other processes lock, too, to write there in turn."""
        super().__init__()
        self._descriptor = descriptor
        self._shared_lock = None if shared_lock is None else shared_lock.open("ab")
        self._max_pending_bytes = max_pending_bytes
        self._state = threading.RLock()  # held for moments; reentrant, for a collector may log
        self._lines: list[bytes] = []
        self._num_pending_bytes = 0  # of these lines, and of those being written
        self.num_dropped = 0  # since the last notice
        self._is_torn = False  # the last line there
        self._is_woken = False  # there is something to write, and the thread will be told
        self._is_closing = threading.Event()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: the last
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode()
        except Exception:  # noqa: BLE001  # the record's own: a wrong argument, or its ``__str__``
            record = self._own_record("log record cannot be formatted", {"path": record.pathname})
            line = self.format(record).encode()
        self.write(line + b"\n")

    def write(self, lines: bytes) -> None:
        """Each ends in a newline."""
        with self._state:
            if self._num_pending_bytes >= self._max_pending_bytes:
                self.num_dropped += lines.count(b"\n")
            else:
                self._num_pending_bytes += len(lines)
                self._lines.append(lines)
            if not self._is_woken:
                self._is_woken = True
                self._wakes.put(True)

    def close(self) -> None:
        self._is_closing.set()
        self._wakes.put(False)
        self._thread.join(_CLOSE_S)
        if self._shared_lock is not None and not self._thread.is_alive():
            self._shared_lock.close()
        super().close()

    # The writer thread

    def _write_all(self) -> None:
        while self._wakes.get():
            self._is_closing.wait(_GATHER_S)  # more lines come meanwhile: one write for all
            self._write_gathered()
        self._write_gathered()

    def _write_gathered(self) -> None:
        with self._state:
            self._is_woken = False
            lines, self._lines = self._lines, []
            num_dropped, self.num_dropped = self.num_dropped, 0
        block = b"".join(lines)
        notice = self._notice(num_dropped) if num_dropped else b""
        self._write(block + notice)
        with self._state:
            self._num_pending_bytes -= len(block)

    def _notice(self, num_dropped: int) -> bytes:
        record = self._own_record("log lines dropped", {"num_events": num_dropped})
        return self.format(record).encode() + b"\n"

    def _own_record(self, message: str, fields: dict[str, object]) -> logging.LogRecord:
        logger = logging.getLogger(__name__)
        return logger.makeRecord(__name__, logging.ERROR, "", 0, message, (), None, extra=fields)

    def _write(self, block: bytes) -> None:
        rest = memoryview(block)
        with self._turn():
            try:
                if self._is_torn:  # or the next line would go on where that one broke off
                    os.write(self._descriptor, b"\n")
                    self._is_torn = False
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:  # nobody reads any more, or the disk is full
                num_written = len(block) - len(rest)
                if num_written and block[num_written - 1 : num_written] != b"\n":
                    self._is_torn = True
                with self._state:
                    self.num_dropped += bytes(rest).count(b"\n")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Whether a line is torn is the whole file's: the lock's file has a byte then."""
        lock = self._shared_lock
        if lock is None:
            yield
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        was_torn = self._is_torn = os.fstat(lock.fileno()).st_size > 0
        try:
            yield
        finally:
            if self._is_torn is not was_torn:
                os.ftruncate(lock.fileno(), int(self._is_torn))  # takes no room on a disk
            fcntl.flock(lock, fcntl.LOCK_UN)
