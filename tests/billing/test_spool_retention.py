"""A segment goes when it is in the ledger whole, can not grow, and has been kept long enough."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from billing.spool_source import SpoolSource
from contracts.spool import LOCKED_WITHIN_S, frame, segment_name, told_mark
from gateway.outbox.segments import SegmentFile
from tests.billing.usage_events import SEGMENT, write_segment

SECOND = segment_name("0a", 1)
OTHER_BOOT = segment_name("0b", 0)
KEEP_S = 1_000.0
WRITTEN_AT_S = 1_800_000_000.0


class Reader:
    """A source, the ledger it is posted to, and the time of day."""

    def __init__(self, spool_dir: Path) -> None:
        self.ledger: dict[str, int] = {}
        self.now_s = WRITTEN_AT_S
        self._spool_dir = spool_dir
        self._source = SpoolSource(
            spool_dir, self.ledger.get, keep_s=KEEP_S, now_s=lambda: self.now_s
        )

    async def read(self, *, is_posted: bool = True) -> list[bytes]:
        """All there is, and once more with nothing left to read."""
        payloads: list[bytes] = []
        while batches := await self._source.poll():
            for batch in batches:
                payloads += [record.payload for record in batch.records]
                if is_posted:
                    self.ledger[batch.source_id] = batch.next_offset
        await self._source.poll()
        return payloads

    def names(self) -> list[str]:
        return sorted(path.name for path in self._spool_dir.iterdir())


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def write(spool_dir: Path, name: str, *lines: bytes) -> Path:
    path = write_segment(spool_dir, name, *lines)
    os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S))
    return path


@contextmanager
def written_by_a_gateway(path: Path) -> Iterator[None]:
    """The lock that a writer holds on its segment."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


async def test_what_is_posted_whole_goes_after_its_time(tmp_path: Path, reader: Reader) -> None:
    write(tmp_path, SEGMENT, frame(b"one"))
    write(tmp_path, SECOND, frame(b"two"))
    assert await reader.read() == [b"one", b"two"]
    reader.now_s += KEEP_S - 1
    await reader.read()
    assert reader.names() == [SEGMENT, SECOND]
    reader.now_s += 1
    await reader.read()
    assert reader.names() == []


async def test_with_a_segment_goes_the_mark_that_its_settlements_were_told(
    tmp_path: Path, reader: Reader
) -> None:
    segment = write(tmp_path, SEGMENT, frame(b"one"))
    SegmentFile(segment).record_told()
    assert told_mark(segment).exists()
    reader.now_s += KEEP_S
    await reader.read()
    assert not segment.exists()
    assert not told_mark(segment).exists()


async def test_a_mark_that_cannot_be_removed_is_not_taken_for_its_segment(
    tmp_path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    segment = write(tmp_path, SEGMENT, frame(b"one"))
    told_mark(segment).mkdir(parents=True)
    reader.now_s += KEEP_S
    await reader.read()
    assert not segment.exists()
    assert [r.msg for r in caplog.records if r.levelname == "ERROR"] == ["mark not removed"]


async def test_what_a_living_writer_may_add_to_stays_however_old(
    tmp_path: Path, reader: Reader
) -> None:
    write(tmp_path, SEGMENT, frame(b"one"))
    path = write(tmp_path, SECOND, frame(b"two"))
    reader.now_s += 100 * KEEP_S
    with written_by_a_gateway(path):
        await reader.read()
        assert reader.names() == [SECOND]
        with path.open("ab") as file:
            file.write(frame(b"three"))
        assert await reader.read() == [b"three"]
    os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S))
    await reader.read()
    assert reader.names() == []


async def test_what_the_ledger_does_not_have_stays(tmp_path: Path, reader: Reader) -> None:
    write(tmp_path, SEGMENT, frame(b"one"), frame(b"two"))
    reader.now_s += 100 * KEEP_S
    await reader.read(is_posted=False)
    assert reader.names() == [SEGMENT]
    reader.ledger[f"spool/{SEGMENT}"] = len(frame(b"one"))
    await reader.read()
    assert reader.names() == [SEGMENT]


async def test_a_torn_tail_of_a_dead_writer_keeps_nothing(
    tmp_path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, SEGMENT, frame(b"one"), frame(b"torn")[:-1])
    write(tmp_path, OTHER_BOOT, frame(b"torn too")[:-1])
    reader.now_s += LOCKED_WITHIN_S
    assert await reader.read() == [b"one"]
    assert [record.message for record in caplog.records] == ["torn tail ignored"] * 2
    reader.now_s += KEEP_S
    await reader.read()
    assert reader.names() == []


async def test_a_segment_that_never_held_anything_goes_at_once(
    tmp_path: Path, reader: Reader
) -> None:
    """A gateway that cannot start leaves one at each attempt."""
    write(tmp_path, SEGMENT)
    write(tmp_path, OTHER_BOOT)
    reader.now_s += LOCKED_WITHIN_S
    with written_by_a_gateway(tmp_path / OTHER_BOOT):
        await reader.read()
    assert reader.names() == [OTHER_BOOT]


async def test_a_new_segment_is_not_touched_before_its_writer_can_lock_it(
    tmp_path: Path, reader: Reader
) -> None:
    path = write(tmp_path, SEGMENT)
    reader.now_s += LOCKED_WITHIN_S - 1
    await reader.read()
    with written_by_a_gateway(path):
        assert reader.names() == [SEGMENT]


async def test_nothing_is_lost_to_another_reader_that_removes_first(
    tmp_path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, SEGMENT, frame(b"one"))
    reader.now_s += LOCKED_WITHIN_S
    assert await reader.read() == [b"one"]
    path.unlink()
    assert await reader.read() == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
