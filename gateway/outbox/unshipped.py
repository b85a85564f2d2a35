"""What waits in the spool, in batches ready to be sent.  Reads, decodes and checkpoints: blocking.

A shipper takes its own boot's segments, and others that nobody writes; none that another ships.
One that will not grow and has been shipped whole is removed, unless the quota store has yet to be
told of some of it.
"""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.spool import unframe
from contracts.usage import Headers, cloud_event_headers, decode_usage_event
from gateway.errors import SegmentUnreadable
from gateway.outbox.segments import SegmentFaults, SegmentFile, segments_of

logger = logging.getLogger(__name__)

_BATCH_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    key: bytes  # the tenant: one tenant's events stay in order
    value: bytes
    headers: Headers


Batch = list[Record]


def unshipped(
    folder: Path,
    own_boot_id: str,
    now_s: Callable[[], float],
    is_owing: Callable[[], bool],
    faults: SegmentFaults,
) -> Generator[Batch]:
    """One pass over the spool.  Raises OSError.

    Asking for the next batch says that the last one was acknowledged; closed instead, the pass
    leaves it to be shipped again.  ``now_s``: seconds since 1970.  ``is_owing``: whether this
    process has not settled all that it has spooled.
    """
    segments = segments_of(folder)
    newest = max((s.index for s in segments if s.boot_id == own_boot_id), default=None)
    for segment in segments:
        try:
            is_own = segment.boot_id == own_boot_id
            if is_own and segment.index == newest:  # its writer has the lock
                yield from _rest_of(segment, may_remove=False)
                continue
            with segment.claimed(now_s()) as is_claimed:  # or others ship it too, or give it up
                if is_claimed:
                    is_owed = is_owing() if is_own else segment.may_owe(now_s())
                    yield from _rest_of(segment, may_remove=not is_owed)
        except SegmentUnreadable as exc:
            faults.tell(segment, exc)


def _rest_of(segment: SegmentFile, *, may_remove: bool) -> Generator[Batch]:
    offset_bytes = segment.shipped_bytes()
    while lines := segment.read_lines(offset_bytes, _BATCH_BYTES):
        yield [record for line in lines if (record := _record(line, segment)) is not None]
        offset_bytes += sum(map(len, lines))
        segment.record_shipped(offset_bytes)
    if may_remove:
        segment.remove()


def _record(line: bytes, segment: SegmentFile) -> Record | None:
    """``None`` for a line that is corrupt; it has been set aside."""
    try:
        payload = unframe(line)
        event = decode_usage_event(payload)
    except ContractError as exc:
        segment.set_aside(line)
        fields = {"segment": segment.path.name, "error": str(exc)}
        logger.warning("corrupt spool line set aside", extra=fields)
        return None
    return Record(event.tenant_id.encode(), payload, cloud_event_headers(event))
