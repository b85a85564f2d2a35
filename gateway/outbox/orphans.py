"""Events of gateways that died: what one may still owe the quota store, for whoever tells it.

Read once.  A mark beside the segment says that it has been; without one it is read again, which
does no harm: the quota store knows for a day what it has been told.  Of a segment that was written
to for longer, what is older is left out.
"""

from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from contracts.errors import ContractError
from contracts.spool import unframe
from contracts.usage import UsageEvent, decode_usage_event
from gateway.outbox.segments import OWED_S, SegmentFaults, SegmentFile, segments_of

_READ_BYTES = 128 * 1024
_TOLD_WITHIN_S: Final = OWED_S - 3_600.0  # clocks differ, and telling takes its time


def orphans(
    folder: Path, own_boot_id: str, now_s: Callable[[], float], faults: SegmentFaults
) -> Generator[list[UsageEvent], bool | None]:
    """One pass over the spool.  Raises OSError where that as a whole cannot be read.

    Asking for the next events says that the last ones were told; sent False, or closed, the pass
    leaves their segment to be read again.  ``now_s``: seconds since 1970.
    """
    since = datetime.fromtimestamp(now_s() - _TOLD_WITHIN_S, UTC)
    for segment in segments_of(folder):
        if segment.boot_id == own_boot_id or not segment.may_owe(now_s()):
            continue
        try:
            with segment.claimed(now_s()) as is_claimed:
                if is_claimed and (yield from _events_of(segment, since)):
                    segment.record_told()
        except OSError as exc:
            faults.tell(segment, exc)


def _events_of(
    segment: SegmentFile, since: datetime
) -> Generator[list[UsageEvent], bool | None, bool]:
    """Whether all were told."""
    offset_bytes, are_told = 0, True
    while lines := segment.read_lines(offset_bytes, _READ_BYTES):
        events = [event for line in lines if (event := _event(line)) is not None]
        answer = yield [event for event in events if event.occurred_at >= since]
        are_told = are_told and answer is not False
        offset_bytes += sum(map(len, lines))
    return are_told


def _event(line: bytes) -> UsageEvent | None:
    """``None`` for a line that is corrupt; whoever takes the events on says so."""
    try:
        return decode_usage_event(unframe(line))
    except ContractError:
        return None
