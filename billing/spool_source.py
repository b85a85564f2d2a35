"""Reads the gateways' spool folder: every whole line of every segment, in order per segment.

Holds one offset per segment, so memory does not grow with what they hold.  Segments take turns, so
a long one does not starve the others.  A torn last line is waited on; once the segment can not grow
it was never acknowledged, and is ignored.

Billing is the one that removes segments here: such as can not grow and are in the ledger whole,
after a while in which the ledger could be made again from them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from billing.errors import SourceUnavailable
from billing.records import Batch
from billing.segment_file import chunk_from, has_writer, segment_names, split
from contracts.names import spool_source_id
from contracts.spool import LOCKED_WITHIN_S, parse_segment_name, told_mark

logger = logging.getLogger(__name__)

_SOURCE_PREFIX = spool_source_id("")


@dataclass(slots=True)
class _Segment:
    """Where reading one segment stands."""

    expected_offset: int | None
    is_finished: bool = False  # nothing can follow
    written_at_s: float = 0.0  # wall clock
    seen_size_bytes: int | None = None  # when it last held nothing whole to read
    is_reported: bool = False  # that it is damaged, cannot be read or cannot be removed now

    @property
    def position(self) -> int:
        return 0 if self.expected_offset is None else self.expected_offset


class SpoolSource:
    """``next_offset`` tells where the ledger stands in a segment.

    It is asked once before reading one, and once more before removing it, ``keep_s`` after its last
    line; a segment without any bytes is kept for nobody.
    """

    def __init__(
        self,
        spool_dir: Path,
        next_offset: Callable[[str], int | None],
        *,
        keep_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._spool_dir = spool_dir
        self._next_offset = next_offset
        self._keep_s = keep_s
        self._now_s = now_s
        self._segments: dict[str, _Segment] = {}
        self._last_served = ""

    async def poll(self) -> list[Batch]:
        """At most one batch: the next records of the segment whose turn it is.  Does not wait."""
        batch = await asyncio.to_thread(self._next_batch)
        return [] if batch is None else [batch]

    async def seek(self, source_id: str, offset: int | None) -> None:
        self._segments[source_id.removeprefix(_SOURCE_PREFIX)] = _Segment(offset)

    async def close(self) -> None:
        """Holds nothing open between polls."""

    def _next_batch(self) -> Batch | None:
        names = [name for name in self._segment_names() if not self._remove_if_done(name)]
        newest = {parse_segment_name(name)[0]: name for name in names}  # the last of each boot wins
        turn = [n for n in names if n > self._last_served] + [
            n for n in names if n <= self._last_served
        ]
        for name in turn:
            is_newest = newest[parse_segment_name(name)[0]] == name
            batch = self._read(name, is_newest=is_newest)
            if batch is not None:
                self._last_served = name
                return batch
        return None

    def _segment_names(self) -> list[str]:
        """Listed before any is read: if a newer one is here, the older is complete."""
        try:
            names = segment_names(self._spool_dir)
        except OSError as exc:
            raise SourceUnavailable(f"spool: {type(exc).__name__}: {exc}") from exc
        for name in self._segments.keys() - set(names):
            if not self._segments.pop(name).is_finished:
                logger.error("segment vanished", extra={"segment": name})
        return names

    def _read(self, name: str, *, is_newest: bool) -> Batch | None:
        segment = self._segment(name)
        if segment.is_finished:
            return None
        try:
            status = (self._spool_dir / name).stat()
            may_grow = is_newest and self._may_have_writer(name, status.st_mtime)
            if may_grow and status.st_size == segment.seen_size_bytes:
                return None  # opening each idle segment at each look is not free
            chunk = chunk_from(self._spool_dir / name, segment.position)
        except OSError as exc:
            _report(segment, "segment unreadable", {"segment": name, "error": type(exc).__name__})
            return None
        segment.written_at_s = status.st_mtime
        if status.st_size < segment.position:
            # A writer whose disk was full takes half a batch back, then writes it again.
            segment.is_finished = not may_grow
            size = {"segment": name, "size_bytes": status.st_size}
            _report(segment, "segment shrank", size)
            return None
        segment.is_reported = False
        return self._batch(name, segment, chunk, may_grow=may_grow)

    def _batch(self, name: str, segment: _Segment, chunk: bytes, *, may_grow: bool) -> Batch | None:
        records, num_bytes = split(chunk, segment.position)
        if not records:
            segment.seen_size_bytes = segment.position + len(chunk)
            if not may_grow:
                _finish(name, segment, num_torn_bytes=len(chunk))
            return None
        batch = Batch(
            source_id=spool_source_id(name),
            expected_offset=segment.expected_offset,
            next_offset=segment.position + num_bytes,
            records=records,
        )
        segment.expected_offset = batch.next_offset
        return batch

    def _may_have_writer(self, name: str, written_at_s: float) -> bool:
        is_recent = self._now_s() - written_at_s < LOCKED_WITHIN_S
        return is_recent or has_writer(self._spool_dir / name)

    def _remove_if_done(self, name: str) -> bool:
        """Whether it is gone."""
        segment = self._segments.get(name)
        if segment is None or not segment.is_finished or segment.is_reported:
            return False
        is_empty = segment.seen_size_bytes == 0
        if not is_empty and self._now_s() - segment.written_at_s < self._keep_s:
            return False
        if self._next_offset(spool_source_id(name)) != segment.expected_offset:
            return False
        try:
            (self._spool_dir / name).unlink(missing_ok=True)
        except OSError as exc:
            _report(segment, "segment not removed", {"segment": name, "error": type(exc).__name__})
            return False
        try:
            told_mark(self._spool_dir / name).unlink(missing_ok=True)
        except OSError as exc:
            _report(segment, "mark not removed", {"segment": name, "error": type(exc).__name__})
        del self._segments[name]
        logger.info("segment removed", extra={"segment": name})
        return True

    def _segment(self, name: str) -> _Segment:
        if name not in self._segments:
            self._segments[name] = _Segment(self._next_offset(spool_source_id(name)))
        return self._segments[name]


def _finish(name: str, segment: _Segment, *, num_torn_bytes: int) -> None:
    segment.is_finished = True
    if num_torn_bytes > 0:
        logger.warning("torn tail ignored", extra={"segment": name, "size_bytes": num_torn_bytes})


def _report(segment: _Segment, fault: str, fields: Mapping[str, object]) -> None:
    """Once, until it can be read again."""
    if not segment.is_reported:
        segment.is_reported = True
        logger.error(fault, extra=fields)
