"""The durable event spool: a folder of append-only segments; the gateway writes, others read.

A segment is ``<boot id>-<index>.spool`` and holds one record a line::

    <crc32 of the payload, 8 hex digits> <payload>\\n

The payload is an encoded ``UsageEvent``: JSON, therefore free of raw newlines.  Boot ids sort by
time of boot, indexes are zero-padded, so the names sort in the order of writing per gateway.
A segment is written by the one process that created it and never changed after.  Its last line may
be torn (no newline yet): a reader waits for the rest, and ignores it once the segment can not grow,
for a record without its newline was never acknowledged.

A segment can not grow once a newer one of the same boot exists, or its writer is gone.  The writer
holds an exclusive ``flock(2)`` on it from right after its creation, before the first record, for as
long as it may grow, so whoever gets that lock knows that the writer is gone.  Do not try for it on
an empty file made within ``LOCKED_WITHIN_S``: between creation and lock, the writer would find it
taken and give the file up.

Whoever takes the events on removes segments, and nobody else: the gateway's shipper where there is
Kafka, billing where it reads the folder; never one that may grow, or before all its lines are kept.
With it goes the mark by which gateways know that they have told the quota store of it.
"""

import re
import zlib
from pathlib import Path

from contracts.errors import ContractError

SEGMENT_SUFFIX = ".spool"
_SEGMENT_NAME = re.compile(r"(?P<boot_id>[0-9a-z]+)-(?P<index>\d{6})\.spool")
_CRC_DIGITS = 8

LOCKED_WITHIN_S = 60.0
"""A new segment is locked by then, however slow the machine."""


def was_locked(size_bytes: int, age_s: float) -> bool:
    """Whether its writer has had the lock; ``age_s``: since it was last written."""
    return size_bytes > 0 or age_s >= LOCKED_WITHIN_S


def segment_name(boot_id: str, index: int) -> str:
    """``boot_id`` is lower-case hex or digits; ``index`` counts from 0."""
    name = f"{boot_id}-{index:06d}{SEGMENT_SUFFIX}"
    parse_segment_name(name)
    return name


def told_mark(segment: Path) -> Path:
    """Where it is, if it is."""
    return segment.parent / "told" / segment.name


def parse_segment_name(name: str) -> tuple[str, int]:
    """(boot id, index).  Raises ContractError."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None:
        raise ContractError(f"expected a segment named BOOT-000000.spool, got {name!r}")
    return match["boot_id"], int(match["index"])


def frame(payload: bytes) -> bytes:
    """One spool line, newline included."""
    if b"\n" in payload:
        raise ContractError("a spool payload must not hold a newline")
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def unframe(line: bytes) -> bytes:
    """The payload of one whole line, newline included.  Raises ContractError."""
    payload = line[_CRC_DIGITS + 1 : -1]
    if line[-1:] != b"\n" or line != frame(payload):
        raise ContractError(f"spool line of {len(line)} bytes is torn or corrupt")
    return payload
