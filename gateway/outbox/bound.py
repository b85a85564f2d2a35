"""How much of the spool waits to be shipped, and what happens when that is too much.

Brokers may be away for an hour or a day; a disk is finite.  At the bound either no new work is
admitted until there is room again, or the oldest events are given up, loudly: the audit finds their
numbers missing.  Which of the two is for an operator to say.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.outbox.segments import SegmentFile, segments_of
from gateway.outbox.spool import Spool
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class OutboxLimit:
    max_bytes: int
    sheds: bool  # the oldest events make room, instead of new work being refused


class OutboxBound:
    """``counts_orphans``: of several processes with one spool one looks after what others left."""

    def __init__(
        self,
        folder: Path,
        own_boot_id: str,
        spool: Spool,
        *,
        limit: OutboxLimit,
        counts_orphans: bool,
        wall_s: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._own_boot_id = own_boot_id
        self._spool = spool
        self._limit = limit
        self._counts_orphans = counts_orphans
        self._wall_s = wall_s
        self._is_failing = False
        self.waiting_bytes = 0
        self.num_shed = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        disk = WorkerThread("outbox-bound")
        try:
            while True:
                await self._look(disk)
                await asyncio.sleep(_LOOK_S)
        finally:
            disk.stop()

    async def _look(self, disk: WorkerThread) -> None:
        try:
            self.waiting_bytes = await disk.call(self.look)
        except OSError as exc:  # whoever writes there has the same trouble, and says so
            if not self._is_failing:
                logger.warning("outbox cannot be measured", extra={"error": exc.strerror})
            self._is_failing = True
            return
        self._is_failing = False
        self._spool.hold_back(self.waiting_bytes > self._limit.max_bytes)

    def look(self) -> int:
        """Bytes that wait, once the oldest have made room, if they shall.

        Blocks; raises OSError.
        """
        segments = [segment for segment in segments_of(self._folder) if self._counts(segment)]
        waiting_bytes = {segment: _waiting_bytes(segment) for segment in segments}
        if self._limit.sheds:
            self._shed(segments, waiting_bytes)
        return sum(waiting_bytes.values())

    def _counts(self, segment: SegmentFile) -> bool:
        if segment.boot_id == self._own_boot_id:
            return True
        if not self._counts_orphans:
            return False
        with segment.claimed(self._wall_s()) as is_orphan:
            return is_orphan

    def _shed(self, segments: Sequence[SegmentFile], waiting_bytes: dict[SegmentFile, int]) -> None:
        """Whole segments, the oldest first; never the one that grows."""
        newest = max((s.index for s in segments if s.boot_id == self._own_boot_id), default=None)
        for segment in segments:
            if sum(waiting_bytes.values()) <= self._limit.max_bytes:
                return
            if segment.boot_id == self._own_boot_id and segment.index == newest:
                continue
            num_events = segment.num_unshipped()
            segment.remove()
            self.num_shed += num_events
            fields = {"segment": segment.path.name, "num_events": num_events}
            logger.error("outbox full, events given up", extra=fields)
            del waiting_bytes[segment]


def _waiting_bytes(segment: SegmentFile) -> int:
    try:
        return segment.path.stat().st_size - segment.shipped_bytes()
    except FileNotFoundError:  # shipped and removed meanwhile
        return 0
