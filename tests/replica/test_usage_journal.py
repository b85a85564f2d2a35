"""The replica's own count of each request, and a disk that takes nothing."""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contracts.replica_usage import ReplicaUsage, decode_replica_usage
from contracts.spool import segment_name, unframe
from replica.usage_journal import UsageJournal
from tests.support.small_disk import small_disk
from tests.support.waiting import eventually

BOOT = "0123456789ab00000000"
AT = datetime(2026, 11, 30, tzinfo=UTC)


def record(boot_id: str, seq: int, request_id: str = "r") -> ReplicaUsage:
    return ReplicaUsage(
        event_id=None,
        request_id=request_id,
        tenant_id=None,
        model="m",
        endpoint="completions",
        is_stream=False,
        finish_reasons=("stop",),
        is_final=True,
        input_uncached_tokens=1,
        input_cache_read_tokens=0,
        output_text_tokens=2,
        resumed_tokens=0,
        arrived_at=AT,
        finished_at=AT,
        replica_boot_id=boot_id,
        replica_seq=seq,
    )


def read(folder: Path) -> list[ReplicaUsage]:
    """Whole records, in the order in which they were written."""
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("*.spool")))
    lines = whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True)
    return [decode_replica_usage(unframe(line)) for line in lines]


def write(journal: UsageJournal, num_records: int) -> None:
    """One after the other: no two share a write."""
    for _ in range(num_records):
        before = journal.num_written
        journal.append(record)
        eventually(lambda: journal.num_written > before, "a record was not written")  # noqa: B023


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., UsageJournal]]:
    journals: list[UsageJournal] = []

    def start(
        folder: Path = tmp_path / "journal", boot: str = BOOT, max_bytes: int = 1 << 20
    ) -> UsageJournal:
        journals.append(UsageJournal(folder, boot_id=boot, max_bytes=max_bytes))
        journals[-1].start()
        return journals[-1]

    yield start
    for journal in journals:
        journal.stop(1.0)


def test_records_are_kept_in_order_and_numbered(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    journal = start()
    for _ in range(1200):
        journal.append(record)
    journal.stop(60.0)
    kept = read(tmp_path / "journal")
    assert [usage.replica_seq for usage in kept] == list(range(1, 1201))
    assert {usage.replica_boot_id for usage in kept} == {BOOT}
    assert (journal.num_written, journal.num_lost) == (1200, 0)


def test_nothing_is_made_for_nothing(start: Callable[..., UsageJournal], tmp_path: Path) -> None:
    start().stop(1.0)
    assert not (tmp_path / "journal").exists()


def test_the_oldest_go_when_the_folder_is_full(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    folder, max_bytes = tmp_path / "journal", 1 << 14
    first = start(max_bytes=max_bytes)
    write(first, 40)
    first.stop(1.0)
    (folder / "notes.txt").write_bytes(bytes(max_bytes))
    second = start(boot="0123456789ac00000000", max_bytes=max_bytes)
    for _ in range(40):
        write(second, 1)
        assert sum(path.stat().st_size for path in folder.glob("*.spool")) <= max_bytes
    kept = [usage.replica_seq for usage in read(folder)]
    assert kept == list(range(41 - len(kept), 41)), "the latest ones, without a gap"
    assert len(kept) > 20
    assert (folder / "notes.txt").exists(), "a file of somebody else's"


def test_many_records_at_once_stay_within_the_bound(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    folder, max_bytes = tmp_path / "journal", 1 << 16
    folder.write_text("in the way")  # so that they gather
    journal = start(max_bytes=max_bytes)
    for _ in range(600):
        journal.append(record)
    folder.unlink()
    eventually(lambda: journal.num_written == 600, "the records were not written")
    assert sum(path.stat().st_size for path in folder.glob("*.spool")) <= max_bytes
    assert read(folder)[-1].replica_seq == 600


def test_many_small_segments_of_earlier_boots_go_too(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for boot in range(300):
        (folder / segment_name(f"{boot:012x}", 0)).write_bytes(b"")
    write(start(), 1)
    names = sorted(path.name for path in folder.glob("*.spool"))
    assert len(names) == 256
    assert names[-1] == segment_name(BOOT, 0)


def test_what_another_writes_is_left_alone(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    max_bytes = 1 << 14
    early = start(max_bytes=max_bytes)
    write(early, 1)
    late = start(boot="0123456789ac00000000", max_bytes=max_bytes)
    write(late, 60)
    assert read(tmp_path / "journal")[0].replica_boot_id == BOOT


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def make_folder(path: Path) -> None:
    (path / "within").mkdir(parents=True)


@pytest.mark.parametrize("make", [make_pipe, make_dangling_link, make_folder])
def test_what_only_bears_a_segments_name_is_in_nobodys_way(
    start: Callable[..., UsageJournal], tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    strangers = [folder / segment_name(f"{boot:012x}", 0) for boot in range(300)]
    for stranger in strangers:
        make(stranger)
    write(start(max_bytes=1 << 14), 40)
    assert all(os.path.lexists(stranger) for stranger in strangers)


@pytest.mark.parametrize("is_moved", [False, True])
def test_records_go_on_in_the_folder_that_was_named(
    start: Callable[..., UsageJournal], tmp_path: Path, is_moved: bool
) -> None:
    folder = tmp_path / "journal"
    journal = start()
    write(journal, 2)
    if is_moved:
        folder.rename(tmp_path / "moved")
    else:
        shutil.rmtree(folder)
    write(journal, 2)
    assert [usage.replica_seq for usage in read(folder)] == [3, 4]


def test_records_wait_for_a_folder_that_cannot_be_written(
    start: Callable[..., UsageJournal], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    folder.write_text("in the way")
    journal = start()
    for _ in range(3):
        journal.append(record)
    eventually(lambda: bool(caplog.records), "nothing was said")
    assert journal.num_written == 0
    folder.unlink()
    eventually(lambda: journal.num_written == 3, "the records were not written")
    assert [usage.replica_seq for usage in read(folder)] == [1, 2, 3]
    assert [r.message for r in caplog.records] == ["usage journal cannot be written"]


def test_a_name_that_is_taken_is_passed_over(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / segment_name(BOOT, 0)).touch()
    write(start(), 1)
    assert (folder / segment_name(BOOT, 1)).stat().st_size > 0


def test_too_many_that_wait_are_lost_and_counted(
    start: Callable[..., UsageJournal], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    folder.write_text("in the way")
    journal = start()
    for _ in range(12_000):
        journal.append(record)
    num_lost = journal.num_lost
    assert 0 < num_lost <= 2_000
    said = [r.message for r in caplog.records if "cannot be written" not in r.message]
    assert said == ["usage journal falls behind", "usage journal is full: records are lost"]
    folder.unlink()
    eventually(lambda: journal.num_written + num_lost == 12_000, "some were neither")
    write(journal, 1)
    assert read(folder)[-1].replica_seq == 12_001, "what was lost shows as a gap"


def test_a_disk_that_takes_nothing_keeps_nobody_from_ending(
    start: Callable[..., UsageJournal], tmp_path: Path
) -> None:
    (tmp_path / "journal").write_text("in the way")
    journal = start()
    journal.append(record)
    journal.stop(60.0)
    assert (journal.num_written, journal.num_lost) == (0, 1)


def test_what_a_hanging_disk_keeps_is_counted_and_said_at_the_stop(
    start: Callable[..., UsageJournal], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread stands still: here, where it is about to say that nothing can be written."""
    (tmp_path / "journal").write_text("in the way")
    is_over = threading.Event()

    def hang(_: logging.LogRecord) -> bool:
        return threading.current_thread() is threading.main_thread() or is_over.wait()

    log = logging.getLogger(UsageJournal.__module__)
    log.addFilter(hang)
    try:
        journal = start()
        for _ in range(3):
            journal.append(record)
        journal.stop(0.2)
        assert (journal.num_written, journal.num_lost) == (0, 3)
        assert [r.message for r in caplog.records] == ["usage journal has lost records"]
    finally:
        log.removeFilter(hang)
        is_over.set()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "128k") as disk:
        yield disk


def test_a_full_disk_tears_no_record(
    start: Callable[..., UsageJournal], disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(64 << 10))
    folder = disk / "journal"
    journal = start(folder)
    for _ in range(200):  # some 80 kB, and 60 are free
        journal.append(record)
    eventually(lambda: bool(caplog.records), "it never got full")
    assert read(folder) == [] or read(folder)[-1].replica_seq < 200
    ballast.unlink()
    eventually(lambda: journal.num_written == 200, "the rest was not written")
    assert [usage.replica_seq for usage in read(folder)] == list(range(1, 201))
