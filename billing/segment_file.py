"""A spool segment as a reader sees it: its whole lines from an offset, and whether it may grow."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from billing.records import Record
from contracts.errors import ContractError
from contracts.spool import SEGMENT_SUFFIX, parse_segment_name, unframe

_MAX_RECORDS = 500
_MAX_CHUNK_BYTES = 1 << 20  # 500 events are 300 kB; a longer line is no event


def segment_names(spool_dir: Path) -> list[str]:
    """Sorted.  Empty while the folder is not there: the gateway makes it when it starts."""
    try:
        found = sorted(p.name for p in spool_dir.iterdir() if p.suffix == SEGMENT_SUFFIX)
    except FileNotFoundError:
        return []
    return [name for name in found if _is_segment(name)]


def has_writer(path: Path) -> bool:
    """By its lock, as ``contracts.spool`` says; a file system without locks tells nothing."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def chunk_from(path: Path, position: int) -> bytes:
    """Raises OSError."""
    with os.fdopen(_opened(path), "rb") as file:
        file.seek(position)
        return file.read(_MAX_CHUNK_BYTES)


def split(chunk: bytes, position: int) -> tuple[list[Record], int]:
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


def records_of(path: Path, position: int = 0) -> Iterator[Record]:
    """All whole lines from there on; none of a segment that is gone.  Raises OSError."""
    while True:
        try:
            records, num_bytes = split(chunk_from(path, position), position)
        except FileNotFoundError:
            return
        yield from records
        if num_bytes == 0:
            return
        position += num_bytes


def _opened(path: Path) -> int:
    """Raises OSError, also for what is no file; to open a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file")
    return descriptor


def _record(line: bytes, offset: int) -> Record:
    try:
        return Record(offset, unframe(line))
    except ContractError as exc:
        return Record(offset, line, fault=str(exc))


def _is_segment(name: str) -> bool:
    try:
        parse_segment_name(name)
    except ContractError:
        return False
    return True
