"""What a stop waits for: the ledger to have all that the gateway has acknowledged, no more."""

import asyncio
import sqlite3
from collections.abc import Iterator

import pytest

from billing.ledger import Ledger
from billing.posting import RatedBatch
from contracts.spool import frame, segment_name
from pandal.booking import spool_booked
from pandal.datadir import DataDir

SEGMENT = segment_name("0a", 0)
LONG_S = 3_600.0


@pytest.fixture
def ledger(data_dir: DataDir) -> Iterator[Ledger]:
    opened = Ledger(data_dir.ledger_url)
    yield opened
    opened.close()


def write_segment(data_dir: DataDir, *pieces: bytes, name: str = SEGMENT) -> None:
    (data_dir.spool / name).write_bytes(b"".join(pieces))


def advance(ledger: Ledger, expected_offset: int | None, next_offset: int) -> None:
    ledger.post(RatedBatch(f"spool/{SEGMENT}", expected_offset, next_offset, [], []))


async def is_waiting(data_dir: DataDir) -> bool:
    waiting = asyncio.create_task(spool_booked(data_dir, patience_s=LONG_S))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


async def returns(data_dir: DataDir) -> None:
    async with asyncio.timeout(60):
        await spool_booked(data_dir, patience_s=LONG_S)


async def test_it_waits_for_the_last_whole_line(data_dir: DataDir, ledger: Ledger) -> None:
    write_segment(data_dir, frame(b"one"), frame(b"two"))
    assert await is_waiting(data_dir)
    advance(ledger, None, len(frame(b"one")))
    assert await is_waiting(data_dir)
    advance(ledger, len(frame(b"one")), len(frame(b"one")) + len(frame(b"two")))
    await returns(data_dir)


async def test_a_torn_tail_of_an_earlier_crash_is_not_waited_for(
    data_dir: DataDir, ledger: Ledger
) -> None:
    write_segment(data_dir, frame(b"one"), frame(b"torn")[:-1])
    write_segment(data_dir, b"", name=segment_name("0b", 0))
    advance(ledger, None, len(frame(b"one")))
    await returns(data_dir)


async def test_it_does_not_wait_for_the_ledgers_writer(data_dir: DataDir, ledger: Ledger) -> None:
    write_segment(data_dir, frame(b"one"))
    advance(ledger, None, len(frame(b"one")))
    writer = sqlite3.connect(data_dir.ledger, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    await returns(data_dir)
    writer.execute("ROLLBACK")
    writer.close()


async def test_a_spool_without_events_needs_no_ledger(data_dir: DataDir) -> None:
    write_segment(data_dir)
    await returns(data_dir)
    assert not data_dir.ledger.exists()


async def test_its_patience_ends(data_dir: DataDir) -> None:
    write_segment(data_dir, frame(b"one"))
    async with asyncio.timeout(60):
        await spool_booked(data_dir, patience_s=0.1)
