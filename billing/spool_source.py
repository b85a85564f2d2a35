"""Reads the gateways' spool folder: every whole line of every segment, in order per segment.

Holds one offset per segment, so memory does not grow with what they hold.  Segments take turns, so
a long one does not starve the others.  A torn last line is waited on; once a newer segment of the
same boot exists it was never acknowledged, and is ignored.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from billing.errors import SourceUnavailable
from billing.records import Batch, Record
from contracts.errors import ContractError
from contracts.spool import SEGMENT_SUFFIX, parse_segment_name, unframe

logger = logging.getLogger(__name__)

_MAX_RECORDS = 500
_MAX_CHUNK_BYTES = 1 << 20  # 500 events are 300 kB; a longer line is no event
_SOURCE_PREFIX = "spool/"


@dataclass(slots=True)
class _Segment:
    """Where reading one segment stands."""

    expected_offset: int | None
    is_finished: bool = False  # nothing can follow
    seen_size_bytes: int | None = None  # when it last held nothing whole to read
    is_reported: bool = False  # that it is damaged or cannot be read now

    @property
    def position(self) -> int:
        return 0 if self.expected_offset is None else self.expected_offset


class SpoolSource:
    """``next_offset`` is asked once per segment for where the ledger stands in it."""

    def __init__(self, spool_dir: Path, next_offset: Callable[[str], int | None]) -> None:
        self._spool_dir = spool_dir
        self._next_offset = next_offset
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
        names = self._segment_names()
        newest = {parse_segment_name(name)[0]: name for name in names}  # the last of each boot wins
        turn = [n for n in names if n > self._last_served] + [
            n for n in names if n <= self._last_served
        ]
        for name in turn:
            is_newest = newest[parse_segment_name(name)[0]] == name
            batch = self._read(name, may_grow=is_newest)
            if batch is not None:
                self._last_served = name
                return batch
        return None

    def _segment_names(self) -> list[str]:
        """Sorted.  Listed before any is read: if a newer one is here, the older is complete."""
        try:
            found = sorted(p.name for p in self._spool_dir.iterdir() if p.suffix == SEGMENT_SUFFIX)
        except FileNotFoundError:
            found = []  # the gateway makes the folder when it starts
        except OSError as exc:
            raise SourceUnavailable(f"spool: {type(exc).__name__}: {exc}") from exc
        names = [name for name in found if _is_segment(name)]
        for name in self._segments.keys() - set(names):
            if not self._segments.pop(name).is_finished:
                logger.error("segment vanished", extra={"segment": name})
        return names

    def _read(self, name: str, *, may_grow: bool) -> Batch | None:
        segment = self._segment(name)
        chunk = None if segment.is_finished else self._unread(name, segment, may_grow=may_grow)
        if chunk is None:
            return None
        records, num_bytes = _split(chunk, segment.position)
        if not records:
            segment.seen_size_bytes = segment.position + len(chunk)
            if not may_grow:
                _finish(name, segment, num_torn_bytes=len(chunk))
            return None
        batch = Batch(
            source_id=_SOURCE_PREFIX + name,
            expected_offset=segment.expected_offset,
            next_offset=segment.position + num_bytes,
            records=records,
        )
        segment.expected_offset = batch.next_offset
        return batch

    def _unread(self, name: str, segment: _Segment, *, may_grow: bool) -> bytes | None:
        """The next bytes; None: as at the last look, or they cannot be had."""
        path = self._spool_dir / name
        try:
            size_bytes = path.stat().st_size
            if may_grow and size_bytes == segment.seen_size_bytes:
                return None  # every boot leaves such a segment behind; opening each is not free
            chunk = _chunk(path, segment.position)
        except OSError as exc:
            _report(segment, "segment unreadable", {"segment": name, "error": type(exc).__name__})
            return None
        if size_bytes < segment.position:
            # A writer whose disk was full takes half a batch back, then writes it again.
            segment.is_finished = not may_grow
            _report(segment, "segment shrank", {"segment": name, "size_bytes": size_bytes})
            return None
        segment.is_reported = False
        return chunk

    def _segment(self, name: str) -> _Segment:
        if name not in self._segments:
            self._segments[name] = _Segment(self._next_offset(_SOURCE_PREFIX + name))
        return self._segments[name]


def _chunk(path: Path, position: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(_MAX_CHUNK_BYTES)


def _finish(name: str, segment: _Segment, *, num_torn_bytes: int) -> None:
    segment.is_finished = True
    if num_torn_bytes > 0:
        logger.warning("torn tail ignored", extra={"segment": name, "size_bytes": num_torn_bytes})


def _report(segment: _Segment, fault: str, fields: Mapping[str, object]) -> None:
    """Once, until it can be read again."""
    if not segment.is_reported:
        segment.is_reported = True
        logger.error(fault, extra=fields)


def _is_segment(name: str) -> bool:
    try:
        parse_segment_name(name)
    except ContractError:
        return False
    return True


def _split(chunk: bytes, position: int) -> tuple[list[Record], int]:
    """Records of the whole lines at the start of ``chunk``, and how many bytes they take."""
    records: list[Record] = []
    start = 0
    while len(records) < _MAX_RECORDS:
        end = chunk.find(b"\n", start) + 1
        if end == 0:
            break
        records.append(_record(chunk[start:end], position + start))
        start = end
    if not records and len(chunk) == _MAX_CHUNK_BYTES:
        fault = f"no newline within {_MAX_CHUNK_BYTES} bytes"
        return [Record(position, chunk, fault)], len(chunk)
    return records, start


def _record(line: bytes, offset: int) -> Record:
    try:
        return Record(offset, unframe(line))
    except ContractError as exc:
        return Record(offset, line, fault=str(exc))
