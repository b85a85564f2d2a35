"""Log lines to a file descriptor, many at a time, by a thread of their own.

The event loop never waits for whoever reads the log.  When that reader is too far behind, lines
are dropped and counted: a log must not become a memory leak.
"""

import asyncio
import logging
import os
import queue
import threading

logger = logging.getLogger(__name__)

_GATHER_S = 0.05  # a reader of the log does not notice; a busy gateway writes hundreds at once
_MAX_PENDING_BYTES = 16 * 1024 * 1024


class LineWriter:
    """Used from the event loop's thread.  ``stop`` it, or the last lines are lost."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None  # None: no line waits
        self._num_pending_bytes = 0  # with the thread
        self._num_dropped = 0
        self._blocks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: the last
        self._thread = threading.Thread(target=self._write_blocks, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """``line`` ends in a newline."""
        self._lines.append(line)
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER_S, self._hand_over)

    async def stop(self, timeout_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._hand_over()
        self._blocks.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _hand_over(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        if self._num_pending_bytes > _MAX_PENDING_BYTES:
            self._num_dropped += len(lines)
            return
        if self._num_dropped:
            logger.error("log lines dropped", extra={"num_events": self._num_dropped})
            self._num_dropped = 0
        block = b"".join(lines)
        self._num_pending_bytes += len(block)
        self._blocks.put(block)

    def _written(self, num_bytes: int) -> None:
        self._num_pending_bytes -= num_bytes

    # The writer thread

    def _write_blocks(self) -> None:
        while (block := self._blocks.get()) is not None:
            self._write(block)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._written, len(block))

    def _write(self, block: bytes) -> None:
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as exc:
            logger.error("log cannot be written", extra={"error": exc.strerror})  # noqa: TRY400
