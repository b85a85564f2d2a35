"""The durable event spool: a folder of append-only segments; the gateway writes, others read.

A segment is ``<boot id>-<index>.spool`` and holds one record a line::

    <crc32 of the payload, 8 hex digits> <payload>\\n

The payload is an encoded ``UsageEvent``: JSON, therefore free of raw newlines.  Boot ids sort by
time of boot, indexes are zero-padded, so the names sort in the order of writing per gateway.
A segment is written by the one process that created it and never changed after.  Its last line may
be torn (no newline yet): a reader waits for the rest, and ignores it once a newer segment of the
same boot exists or the writer is gone, for a record without its newline was never acknowledged.
"""

import re
import zlib

from contracts.errors import ContractError

SEGMENT_SUFFIX = ".spool"
_SEGMENT_NAME = re.compile(r"(?P<boot_id>[0-9a-z]+)-(?P<index>\d{6})\.spool")
_CRC_DIGITS = 8


def segment_name(boot_id: str, index: int) -> str:
    """``boot_id`` is lower-case hex or digits; ``index`` counts from 0."""
    name = f"{boot_id}-{index:06d}{SEGMENT_SUFFIX}"
    parse_segment_name(name)
    return name


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
