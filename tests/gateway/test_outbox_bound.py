"""The outbox is bounded: then new work is refused, or the oldest events are given up."""

import asyncio
import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts import metrics
from contracts.spool import segment_name
from gateway.outbox.bound import OutboxBound, OutboxLimit
from gateway.outbox.segments import SegmentFaults, SegmentFile
from gateway.outbox.spool import Spool
from gateway.outbox.unshipped import unshipped
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway
from tests.gateway.test_spool_reading import DEAD_BOOT, NOW_S, OWN_BOOT, write
from tests.support.waiting import eventually


def bound(folder: Path, max_bytes: int, *, sheds: bool, is_in_charge: bool = True) -> OutboxBound:
    return OutboxBound(
        folder,
        OWN_BOOT,
        Spool(folder, OWN_BOOT, 1),
        limit=OutboxLimit(max_bytes, sheds),
        is_in_charge=is_in_charge,
        wall_s=lambda: NOW_S,
    )


async def test_what_waits_is_what_nobody_has_shipped_whoever_wrote_or_ships_it(
    tmp_path: Path,
) -> None:
    own = write(tmp_path, OWN_BOOT, 0, range(1, 4))
    dead = write(tmp_path, DEAD_BOOT, 0, range(1, 3))
    SegmentFile(own).record_shipped(100)
    waiting_bytes = own.stat().st_size - 100
    waiting_bytes += dead.stat().st_size
    assert bound(tmp_path, 1, sheds=False).look() == waiting_bytes
    with locked(dead):  # while it is being shipped, say, to brokers that are away
        for is_in_charge in (True, False):
            looking = bound(tmp_path, 1, sheds=False, is_in_charge=is_in_charge)
            assert looking.look() == waiting_bytes


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_the_oldest_make_room_and_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = write(tmp_path, DEAD_BOOT, 0, range(1, 3))
    earlier = write(tmp_path, OWN_BOOT, 0, range(1, 6))
    growing = write(tmp_path, OWN_BOOT, 1, range(6, 10))
    limit = earlier.stat().st_size + growing.stat().st_size
    shedding = bound(tmp_path, limit, sheds=True)
    with caplog.at_level(logging.ERROR):
        assert shedding.look() == limit
    assert [path.exists() for path in (dead, earlier, growing)] == [False, True, True]
    assert (shedding.num_shed, len(caplog.records)) == (2, 1)
    all_shed = bound(tmp_path, 0, sheds=True)
    assert all_shed.look() == growing.stat().st_size, "what is being written stays"
    assert all_shed.num_shed == 5


async def test_what_another_holds_or_nobody_waits_for_makes_no_room(tmp_path: Path) -> None:
    held = write(tmp_path, DEAD_BOOT, 0, range(1, 3))
    shipped = write(tmp_path, DEAD_BOOT, 1, range(3, 5))
    earlier = write(tmp_path, OWN_BOOT, 0, range(1, 6))
    growing = write(tmp_path, OWN_BOOT, 1, range(6, 10))
    SegmentFile(shipped).record_shipped(shipped.stat().st_size)
    everything = (held, shipped, earlier, growing)
    with locked(held):
        others = bound(tmp_path, 0, sheds=True, is_in_charge=False)
        others.look()
        assert (others.num_shed, all(path.exists() for path in everything)) == (0, True)
        shedding = bound(tmp_path, 0, sheds=True)
        assert shedding.look() == held.stat().st_size + growing.stat().st_size
    assert [path.exists() for path in everything] == [True, True, False, True]
    assert shedding.num_shed == 5


async def test_what_a_living_worker_ships_is_not_given_up_by_another(tmp_path: Path) -> None:
    """Though it has written it whole."""
    shipped = write(tmp_path, DEAD_BOOT, 0, range(1, 3))
    waiting = write(tmp_path, DEAD_BOOT, 1, range(3, 5))
    growing = write(tmp_path, DEAD_BOOT, 2, range(5, 7))
    passing = unshipped(tmp_path, DEAD_BOOT, lambda: NOW_S, lambda: False, SegmentFaults())
    next(passing)
    with locked(growing):
        bound(tmp_path, 0, sheds=True).look()
    assert [path.exists() for path in (shipped, waiting, growing)] == [True, False, True]
    passing.close()


async def test_an_own_segment_that_cannot_be_read_keeps_no_other_from_making_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / segment_name(OWN_BOOT, 0)
    bad.mkdir()
    earlier = write(tmp_path, OWN_BOOT, 1, range(1, 3))
    growing = write(tmp_path, OWN_BOOT, 2, range(3, 5))
    shedding = bound(tmp_path, 0, sheds=True)
    for _ in range(2):
        shedding.look()
    assert [path.exists() for path in (bad, earlier, growing)] == [True, False, True]
    assert [r.__dict__["segment"] for r in caplog.records] == [earlier.name]


async def test_at_the_bound_new_work_is_refused_also_after_a_restart(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], tmp_path: Path
) -> None:
    settings = {
        "GATEWAY_SPOOL_DIR": str(tmp_path / "spool"),
        "GATEWAY_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "GATEWAY_SPOOL_MAX_WAITING_BYTES": "1",
    }
    gateway = start_gateway(**settings)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    for number in range(2):
        await asyncio.to_thread(
            eventually, lambda gateway=gateway: is_full(gateway), "the outbox to be full"
        )
        refused = await Tenant(tenant.name, tenant.key, gateway, tenant.valkey).chat(chat())
        assert (refused.status, refused.error["code"]) == (503, "metering_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        reasons = (await get(gateway.port, "/ready")).document["reasons"]
        assert "the spool is full, too much waits to be shipped" in reasons
        numbers = (await get(gateway.port, "/metrics")).body.decode()
        (waiting,) = [
            int(line.split()[-1])
            for line in numbers.splitlines()
            if line.startswith(metrics.GATEWAY_OUTBOX_BYTES)
        ]
        assert waiting > 1
        if number == 0:
            gateway.stop()
            gateway = start_gateway(**settings)


def is_full(gateway: Gateway) -> bool:
    return "spool is full" in gateway.log_path.read_text()
