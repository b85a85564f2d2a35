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

from gateway.errors import SegmentUnreadable
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
    """Of one folder, whoever has written there: what fills a disk fills it for all.

    ``is_in_charge``: of several processes with one spool one makes room.
    """

    def __init__(
        self,
        folder: Path,
        own_boot_id: str,
        spool: Spool,
        *,
        limit: OutboxLimit,
        is_in_charge: bool,
        wall_s: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._own_boot_id = own_boot_id
        self._spool = spool
        self._limit = limit
        self._is_in_charge = is_in_charge
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
        is_full = self.waiting_bytes > self._limit.max_bytes
        self._spool.hold_back(is_full and not self._limit.sheds)

    def look(self) -> int:
        """Bytes that wait, once the oldest have made room, if they shall.

        Blocks; raises OSError.
        """
        segments = segments_of(self._folder)
        waiting_bytes = {segment: _waiting_bytes(segment) for segment in segments}
        if self._limit.sheds and self._is_in_charge:
            self._shed(segments, waiting_bytes)
        return sum(waiting_bytes.values())

    def _shed(self, segments: Sequence[SegmentFile], waiting_bytes: dict[SegmentFile, int]) -> None:
        """Whole segments, the oldest first; never one that grows or is being shipped elsewhere."""
        newest = max((s.index for s in segments if s.boot_id == self._own_boot_id), default=None)
        for segment in segments:
            if sum(waiting_bytes.values()) <= self._limit.max_bytes:
                return
            if waiting_bytes[segment] == 0:
                continue
            if segment.boot_id != self._own_boot_id:
                is_given_up = self._give_up_anothers(segment)
            else:
                is_given_up = segment.index != newest and self._give_up(segment)
            if is_given_up:
                del waiting_bytes[segment]

    def _give_up_anothers(self, segment: SegmentFile) -> bool:
        try:
            with segment.claimed(self._wall_s()) as is_claimed:
                return is_claimed and self._give_up(segment)
        except SegmentUnreadable:  # whoever ships says so
            return False

    def _give_up(self, segment: SegmentFile) -> bool:
        """False: it was shipped and removed meanwhile, or cannot be read."""
        try:
            num_events = segment.num_unshipped()
            segment.remove()
        except (FileNotFoundError, SegmentUnreadable):  # whoever ships says so
            return False
        self.num_shed += num_events
        fields = {"segment": segment.path.name, "num_events": num_events}
        logger.error("outbox full, events given up", extra=fields)
        return True


def _waiting_bytes(segment: SegmentFile) -> int:
    try:
        return segment.path.stat().st_size - segment.shipped_bytes()
    except FileNotFoundError:  # shipped and removed meanwhile
        return 0
