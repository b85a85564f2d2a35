"""The spool as its shipper reads it: nothing twice without need, and nothing never."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from contracts.spool import frame, segment_name
from contracts.usage import UsageEvent, encode_usage_event
from gateway.outbox.orphans import Untold, orphans
from gateway.outbox.segments import SegmentFaults, SegmentFile, segments_of
from gateway.outbox.unshipped import Batch, unshipped
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import get
from tests.gateway.processes import Gateway
from tests.gateway.spooled import usage_event
from tests.support.waiting import eventually

OWN_BOOT, DEAD_BOOT = "0000000000bb", "0000000000aa"


def write(folder: Path, boot: str, index: int, seqs: range, *, age_s: float = 1.0) -> Path:
    """Events that occurred so long ago, in a segment that was written just now."""
    path, occurred_at = (
        folder / segment_name(boot, index),
        datetime.fromtimestamp(NOW_S - age_s, UTC),
    )
    with path.open("ab") as file:
        for seq in seqs:
            event = structs.replace(usage_event(seq, boot), occurred_at=occurred_at)
            file.write(frame(encode_usage_event(event)))
    return path


def age(path: Path, age_s: float) -> None:
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


NOW_S = 1_800_000_000.0


def a_pass(folder: Path, faults: SegmentFaults | None = None) -> Generator[Batch]:
    return unshipped(folder, OWN_BOOT, lambda: NOW_S, lambda: False, faults or SegmentFaults())


def told(folder: Path, faults: SegmentFaults | None = None) -> list[int]:
    """The numbers of what dead gateways may owe, as a pass tells them."""
    some = orphans(folder, OWN_BOOT, lambda: NOW_S, faults or SegmentFaults(), {})
    return [event.gateway_seq for events in some for event in events]


def test_other_files_in_the_folder_are_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.spool").write_text("not ours")
    (tmp_path / "README").write_text("not ours")
    segment = write(tmp_path, OWN_BOOT, 0, range(1, 4))
    assert [s.path for s in segments_of(tmp_path)] == [segment]
    assert [len(batch) for batch in a_pass(tmp_path)] == [3]


@pytest.mark.parametrize(
    "checkpoint", [b"", b"\0\0\0", b"\xff", b"ten", b"-5", b"1000000"], ids=repr
)
def test_a_checkpoint_that_cannot_be_right_ships_again(tmp_path: Path, checkpoint: bytes) -> None:
    """An empty one is what a power cut leaves."""
    path = write(tmp_path, OWN_BOOT, 0, range(1, 4))
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / (path.name + ".offset")).write_bytes(checkpoint)
    assert [len(batch) for batch in a_pass(tmp_path)] == [3]
    assert SegmentFile(path).shipped_bytes() == path.stat().st_size
    assert list(a_pass(tmp_path)) == []


def test_a_pass_that_is_closed_ships_its_last_batch_again(tmp_path: Path) -> None:
    write(tmp_path, OWN_BOOT, 0, range(1, 4))
    given_up = a_pass(tmp_path)
    first = next(given_up)
    given_up.close()
    assert list(a_pass(tmp_path)) == [first]


def test_a_dead_writers_segment_is_removed_once_it_is_shipped_and_nothing_of_it_is_owed(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, DEAD_BOOT, 0, range(1, 4))
    age(path, 1.0)
    assert [len(batch) for batch in a_pass(tmp_path)] == [3]
    assert path.exists(), "the quota store may not know of them"
    assert told(tmp_path) == [1, 2, 3]
    assert list(a_pass(tmp_path)) == []
    assert not path.exists()
    assert [list((tmp_path / name).iterdir()) for name in ("shipped", "told")] == [[], []]


def test_what_dead_gateways_owe_is_told_once(tmp_path: Path) -> None:
    """And again where the telling was broken off."""
    write(tmp_path, OWN_BOOT, 0, range(1, 3))
    path = write(tmp_path, DEAD_BOOT, 0, range(1, 4))
    with path.open("ab") as file:
        file.write(b"corrupt\ntorn")
    age(path, 1.0)
    broken_off = orphans(tmp_path, OWN_BOOT, lambda: NOW_S, SegmentFaults(), {})
    next(broken_off)
    broken_off.close()
    assert told(tmp_path) == [1, 2, 3]
    assert told(tmp_path) == []


def test_only_tenants_who_could_not_be_told_are_told_again(tmp_path: Path) -> None:
    path = write(tmp_path, DEAD_BOOT, 0, range(1, 7))
    age(path, 1.0)
    left: dict[str, Untold] = {}

    def asked(untold: Untold) -> set[str]:
        waiting, tenants = (
            orphans(tmp_path, OWN_BOOT, lambda: NOW_S, SegmentFaults(), left),
            set[str](),
        )
        events: list[UsageEvent] = next(waiting, [])
        with contextlib.suppress(StopIteration):
            while True:
                tenants |= {event.tenant_id for event in events}
                events = waiting.send(untold)
        return tenants

    every = asked({"tenant-1"})
    assert len(every) > 1
    assert asked({"tenant-1"}) == asked(set()) == {"tenant-1"}
    assert asked(set()) == set()
    assert not SegmentFile(path).may_owe(NOW_S)
    assert left == {}


def test_what_cannot_be_marked_is_said_and_told_once_all_the_same(tmp_path: Path) -> None:
    for index in range(2):
        age(write(tmp_path, DEAD_BOOT, index, range(1, 4)), 1.0)
    (tmp_path / "told").write_bytes(b"")  # in the place of its folder
    left: dict[str, Untold] = {}
    all_told: list[UsageEvent] = []

    def tell() -> None:
        for events in orphans(tmp_path, OWN_BOOT, lambda: NOW_S, SegmentFaults(), left):
            all_told.extend(events)

    for _ in range(2):
        with pytest.raises(FileExistsError):
            tell()
    assert len(all_told) == 6


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_one_segment_that_cannot_be_read_is_told_once_and_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    bad = tmp_path / segment_name(DEAD_BOOT, 0)
    make(bad)
    path = write(tmp_path, DEAD_BOOT, 1, range(1, 4))
    for each in (bad, path):
        age(each, 1.0)
    faults = SegmentFaults()
    assert told(tmp_path, faults) == [1, 2, 3]
    assert told(tmp_path, faults) == []
    assert [len(batch) for batch in a_pass(tmp_path, faults)] == [3]
    assert [r.__dict__["segment"] for r in caplog.records] == [bad.name]
    assert not path.exists()


def test_what_the_quota_store_has_forgotten_by_now_is_told_to_nobody(tmp_path: Path) -> None:
    path = write(tmp_path, DEAD_BOOT, 0, range(1, 4))
    age(path, 86_400.0)
    assert told(tmp_path) == []
    assert [len(batch) for batch in a_pass(tmp_path)] == [3]
    assert not path.exists()


def test_of_a_segment_that_was_written_to_for_days_only_the_last_is_told(tmp_path: Path) -> None:
    """The store has forgotten that it was told of the others when they occurred."""
    write(tmp_path, DEAD_BOOT, 0, range(1, 3), age_s=3 * 86_400.0)
    write(tmp_path, DEAD_BOOT, 0, range(3, 4), age_s=85_000.0)
    path = write(tmp_path, DEAD_BOOT, 0, range(4, 6), age_s=80_000.0)
    age(path, 80_000.0)
    assert told(tmp_path) == [4, 5]
    assert told(tmp_path) == []


def test_a_segment_stays_while_its_gateway_owes_the_quota_store(tmp_path: Path) -> None:
    earlier = write(tmp_path, OWN_BOOT, 0, range(1, 4))
    write(tmp_path, OWN_BOOT, 1, range(4, 6))
    owing = unshipped(tmp_path, OWN_BOOT, lambda: NOW_S, lambda: True, SegmentFaults())
    assert [len(batch) for batch in owing] == [3, 2]
    assert earlier.exists()
    assert list(a_pass(tmp_path)) == []
    assert not earlier.exists()


def test_a_living_writers_segment_is_nobody_elses(tmp_path: Path) -> None:
    path = write(tmp_path, DEAD_BOOT, 0, range(1, 4))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(a_pass(tmp_path)) == []
        assert told(tmp_path) == []
    assert path.exists()


def test_a_strangers_new_segment_is_left_to_be_locked(tmp_path: Path) -> None:
    """Before its first record: whoever writes has locked it."""
    path = write(tmp_path, DEAD_BOOT, 0, range(0))
    age(path, 59.0)
    assert list(a_pass(tmp_path)) == []
    assert told(tmp_path) == []
    assert path.exists()


def test_a_segment_that_another_gateway_removed_is_not_missed(tmp_path: Path) -> None:
    gone = write(tmp_path, DEAD_BOOT, 0, range(1, 4))
    age(gone, 61.0)
    path = write(tmp_path, OWN_BOOT, 0, range(1, 3))
    (gone_segment, own_segment) = segments_of(tmp_path)
    gone.unlink()
    with gone_segment.claimed(NOW_S) as is_claimed:
        assert not is_claimed
    assert own_segment.read_lines(0, 10)
    assert path.exists()


async def test_a_gateway_starts_with_strange_files_in_its_spool(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], tmp_path: Path
) -> None:
    spool_dir = tmp_path / "strange-spool"
    (spool_dir / "shipped").mkdir(parents=True)
    (spool_dir / "notes.spool").write_text("not ours")
    dead = write(spool_dir, DEAD_BOOT, 0, range(1, 4))
    age(dead, NOW_S)
    (spool_dir / "shipped" / (dead.name + ".offset")).write_text("")
    gateway = start_gateway(GATEWAY_SPOOL_DIR=str(spool_dir), GATEWAY_KAFKA_BOOTSTRAP="127.0.0.1:1")
    eventually(lambda: "kafka unreachable" in gateway.log_path.read_text(), "an attempt to ship")
    assert (await get(gateway.port, "/health")).status == 200
    assert gateway.stop() == 0
