"""Every whole line of the spool is read once, whatever the writer is in the middle of."""

import logging
from pathlib import Path

import pytest

from billing.errors import SourceUnavailable
from billing.records import Batch
from billing.spool_source import SpoolSource
from contracts.spool import frame, segment_name
from tests.billing.usage_events import SEGMENT, line, usage, write_segment

SECOND = segment_name("0a", 1)
OTHER_BOOT = segment_name("0b", 0)


WEEK_S = 7 * 86_400.0


def fresh(spool_dir: Path) -> SpoolSource:
    return SpoolSource(spool_dir, lambda _source_id: None, keep_s=WEEK_S)


async def drain(source: SpoolSource) -> list[Batch]:
    """Polls until nothing comes."""
    batches: list[Batch] = []
    while polled := await source.poll():
        batches += polled
    return batches


async def payloads(source: SpoolSource) -> list[bytes]:
    return [r.payload for batch in await drain(source) for r in batch.records]


async def test_all_segments_are_read_in_bounded_consecutive_batches(tmp_path: Path) -> None:
    lines = [frame(b"%d" % n) for n in range(1_201)]
    write_segment(tmp_path, SEGMENT, *lines)
    write_segment(tmp_path, OTHER_BOOT, frame(b"other"))
    batches = await drain(fresh(tmp_path))
    assert max(len(batch.records) for batch in batches) == 500
    ours = [b for b in batches if b.source_id == f"spool/{SEGMENT}"]
    assert [b.expected_offset for b in ours] == [None, *(b.next_offset for b in ours[:-1])]
    assert [r.payload for b in ours for r in b.records] == [b"%d" % n for n in range(1_201)]
    assert ours[-1].next_offset == sum(map(len, lines))


async def test_a_long_segment_does_not_starve_the_others(tmp_path: Path) -> None:
    write_segment(tmp_path, SEGMENT, *[frame(b"long")] * 2_000)
    write_segment(tmp_path, OTHER_BOOT, frame(b"short"))
    source = fresh(tmp_path)
    first_two = [*await source.poll(), *await source.poll()]
    assert {batch.source_id for batch in first_two} == {f"spool/{SEGMENT}", f"spool/{OTHER_BOOT}"}


async def test_a_line_written_byte_by_byte_is_read_when_it_is_whole(tmp_path: Path) -> None:
    whole = line(usage(1)) + line(usage(2))
    path = write_segment(tmp_path, SEGMENT)
    source = fresh(tmp_path)
    read: list[tuple[int, bytes]] = []
    with path.open("ab", buffering=0) as file:
        for n in range(len(whole)):
            file.write(whole[n : n + 1])
            read += [(n, r.payload) for b in await source.poll() for r in b.records]
    first_end = len(line(usage(1))) - 1
    assert [n for n, _ in read] == [first_end, len(whole) - 1]
    assert b"".join(frame(payload) for _, payload in read) == whole


async def test_a_torn_last_line_waits_while_its_boot_may_still_write(tmp_path: Path) -> None:
    path = write_segment(tmp_path, SEGMENT, frame(b"one"), frame(b"two")[:-1])
    source = fresh(tmp_path)
    assert await payloads(source) == [b"one"]
    with path.open("ab") as file:
        file.write(b"\n")
    assert await payloads(source) == [b"two"]


async def test_a_torn_last_line_is_ignored_once_its_boot_has_moved_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_segment(tmp_path, SEGMENT, frame(b"one"), frame(b"torn")[:-1])
    write_segment(tmp_path, SECOND, frame(b"two"))
    assert await payloads(fresh(tmp_path)) == [b"one", b"two"]
    assert [r.message for r in caplog.records] == ["torn tail ignored"]


async def test_a_torn_line_of_another_boot_still_waits(tmp_path: Path) -> None:
    path = write_segment(tmp_path, SEGMENT, frame(b"one")[:-1])
    write_segment(tmp_path, OTHER_BOOT, frame(b"other"))
    source = fresh(tmp_path)
    assert await payloads(source) == [b"other"]
    with path.open("ab") as file:
        file.write(b"\n")
    assert await payloads(source) == [b"one"]


async def test_a_corrupt_line_is_handed_on_with_its_place_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    bad = frame(b"bad").replace(b"bad", b"bed")
    write_segment(tmp_path, SEGMENT, frame(b"one"), bad, b"\n", frame(b"two"))
    (batch,) = await drain(fresh(tmp_path))
    one = len(frame(b"one"))
    assert [(r.offset, r.payload, r.fault is None) for r in batch.records] == [
        (0, b"one", True),
        (one, bad, False),
        (one + len(bad), b"\n", False),
        (one + len(bad) + 1, b"two", True),
    ]


async def test_megabytes_without_a_newline_are_set_aside_in_bounded_pieces(tmp_path: Path) -> None:
    write_segment(tmp_path, SEGMENT, b"\0" * (3 << 20), b"\n", frame(b"after"))
    records = [r for batch in await drain(fresh(tmp_path)) for r in batch.records]
    assert max(len(r.payload) for r in records) == 1 << 20
    assert sum(len(r.payload) for r in records if r.fault is not None) == (3 << 20) + 1
    assert [r.payload for r in records if r.fault is None] == [b"after"]


async def test_reading_goes_on_where_the_ledger_stands(tmp_path: Path) -> None:
    write_segment(tmp_path, SEGMENT, frame(b"one"), frame(b"two"))
    stored = {f"spool/{SEGMENT}": len(frame(b"one"))}
    source = SpoolSource(tmp_path, stored.get, keep_s=WEEK_S)
    (batch,) = await drain(source)
    assert batch.expected_offset == len(frame(b"one"))
    assert [r.payload for r in batch.records] == [b"two"]


@pytest.mark.parametrize("offset", [None, 0, len(frame(b"one"))])
async def test_it_goes_back_where_it_is_told(tmp_path: Path, offset: int | None) -> None:
    write_segment(tmp_path, SEGMENT, frame(b"one"), frame(b"two"))
    source = fresh(tmp_path)
    await drain(source)
    await source.seek(f"spool/{SEGMENT}", offset)
    (batch,) = await drain(source)
    assert batch.expected_offset == offset
    assert [r.payload for r in batch.records] == ([b"one", b"two"] if not offset else [b"two"])


async def test_segments_and_the_folder_itself_may_appear_later(tmp_path: Path) -> None:
    source = fresh(tmp_path / "spool")
    assert await payloads(source) == []
    for name in (SEGMENT, SECOND, OTHER_BOOT):
        write_segment(tmp_path / "spool", name, frame(name.encode()))
        assert await payloads(source) == [name.encode()]


async def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "0A-000000.spool", "0a-1.spool", "0a-000000.spool.tmp"):
        write_segment(tmp_path, name, frame(b"no"))
    assert await payloads(fresh(tmp_path)) == []


@pytest.mark.parametrize("fate", ["shrank", "vanished"])
async def test_a_damaged_segment_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fate: str
) -> None:
    path = write_segment(tmp_path, SEGMENT, frame(b"one"), frame(b"two"))
    source = fresh(tmp_path)
    await drain(source)
    if fate == "shrank":
        path.write_bytes(frame(b"one"))
    else:
        path.unlink()
    write_segment(tmp_path, OTHER_BOOT, frame(b"other"))
    assert await payloads(source) == [b"other"]
    assert await payloads(source) == []
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [(r.message, vars(r)["segment"]) for r in errors] == [(f"segment {fate}", SEGMENT)]


async def test_a_writer_may_take_half_a_batch_back_and_write_it_again(tmp_path: Path) -> None:
    """As the gateway does when its disk is full: what was read stays read, the rest follows."""
    whole = frame(b"one") + frame(b"two") + frame(b"three")
    path = write_segment(tmp_path, SEGMENT, whole[:-7])
    source = fresh(tmp_path)
    assert await payloads(source) == [b"one", b"two"]
    path.write_bytes(frame(b"one"))
    assert await payloads(source) == []
    path.write_bytes(whole)
    assert await payloads(source) == [b"three"]


async def test_a_segment_that_cannot_be_read_is_reported_once_and_read_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SEGMENT).mkdir()
    write_segment(tmp_path, OTHER_BOOT, frame(b"other"))
    source = fresh(tmp_path)
    assert await payloads(source) == [b"other"]
    assert await payloads(source) == []
    assert [r.message for r in caplog.records] == ["segment unreadable"]
    (tmp_path / SEGMENT).rmdir()
    write_segment(tmp_path, SEGMENT, frame(b"one"))
    assert await payloads(source) == [b"one"]


async def test_a_spool_that_is_no_folder_is_an_error_that_may_pass(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    source = fresh(tmp_path / "spool")
    with pytest.raises(SourceUnavailable):
        await source.poll()
    (tmp_path / "spool").unlink()
    write_segment(tmp_path / "spool", SEGMENT, frame(b"one"))
    assert await payloads(source) == [b"one"]


async def test_finished_segments_cost_no_second_look_at_the_ledger(tmp_path: Path) -> None:
    asked: list[str] = []
    write_segment(tmp_path, SEGMENT, frame(b"one"))
    write_segment(tmp_path, SECOND, frame(b"two"))
    source = SpoolSource(tmp_path, asked.append, keep_s=WEEK_S)
    for _ in range(5):
        await source.poll()
    assert asked == [f"spool/{SEGMENT}", f"spool/{SECOND}"]
