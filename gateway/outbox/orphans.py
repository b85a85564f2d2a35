"""Events of gateways that died: what one may still owe the quota store, for whoever tells it.

Read once.  A mark beside the segment says that it has been; without one it is read again, which
does no harm: the quota store knows for a day what it has been told.  Of a segment that was written
to for longer, what is older is left out.
"""

from collections.abc import Callable, Generator, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from contracts.errors import ContractError
from contracts.spool import unframe
from contracts.usage import UsageEvent, decode_usage_event
from gateway.errors import SegmentUnreadable
from gateway.outbox.segments import OWED_S, SegmentFaults, SegmentFile, segments_of

_READ_BYTES = 128 * 1024
_TOLD_WITHIN_S: Final = OWED_S - 3_600.0  # clocks differ, and telling takes its time


Untold = Set[str]  # tenants
Pass = Generator[list[UsageEvent], Untold | None]


def orphans(
    folder: Path,
    own_boot_id: str,
    now_s: Callable[[], float],
    faults: SegmentFaults,
    left: dict[str, Untold],
) -> Pass:
    """One pass over the spool.  Raises OSError where that, or the marks, are out of order.

    Asking for the next events says that the last ones were told, but for those of tenants that are
    sent; closed, the pass leaves its segment to be read again.  ``now_s``: seconds since 1970.
    ``left``: of segments, by name, that an earlier pass has told to the others; kept up to date.
    """
    since = datetime.fromtimestamp(now_s() - _TOLD_WITHIN_S, UTC)
    unmarked: OSError | None = None
    for segment in segments_of(folder):
        if segment.boot_id == own_boot_id or not segment.may_owe(now_s()):
            continue
        try:
            with segment.claimed(now_s()) as is_claimed:
                if not is_claimed:
                    continue
                name = segment.path.name
                left[name] = yield from _untold_of(segment, since, left.get(name))
                unmarked = _mark_fault(segment, left) or unmarked
        except SegmentUnreadable as exc:
            faults.tell(segment, exc)
        except FileNotFoundError:  # shipped and removed by another gateway
            left.pop(segment.path.name, None)
    if unmarked is not None:
        raise unmarked


def _mark_fault(segment: SegmentFile, left: dict[str, Untold]) -> OSError | None:
    """Of a segment that owes nothing; without its mark it stays known here."""
    if left[segment.path.name]:
        return None
    try:
        segment.record_told()
    except OSError as exc:
        return exc
    del left[segment.path.name]
    return None


def _untold_of(
    segment: SegmentFile, since: datetime, only: Untold | None
) -> Generator[list[UsageEvent], Untold | None, Untold]:
    """``only``: tenants whose events are asked for; ``None``: all."""
    offset_bytes, untold = 0, set[str]()
    if only is not None and not only:
        return untold
    while lines := segment.read_lines(offset_bytes, _READ_BYTES):
        events = [event for line in lines if (event := _event(line)) is not None]
        due = [event for event in events if event.occurred_at >= since]
        untold |= (yield [e for e in due if only is None or e.tenant_id in only]) or set()
        offset_bytes += sum(map(len, lines))
    return untold


def _event(line: bytes) -> UsageEvent | None:
    """``None`` for a line that is corrupt; whoever takes the events on says so."""
    try:
        return decode_usage_event(unframe(line))
    except ContractError:
        return None
