"""A disk that hangs, instead of failing: no new request is admitted, and no event is lost."""

from pathlib import Path
from typing import Literal

import pytest

from contracts.spool import frame
from gateway.outbox.spool import Spool
from tests.gateway.hanging_file import hanging_writes
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running, until
from tests.gateway.upstream_server import Upstream, words

FIRST_ANSWERS = {"commit": b" 503 ", "relaxed": b" 200 "}  # who waits for the disk is told so


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
async def test_while_the_disk_hangs_new_requests_are_refused(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    durability: Literal["commit", "relaxed"],
) -> None:
    tenant = f"hanging-{durability}"
    policies.add(tenant, f"sk-{tenant}")
    upstream.behaviour = words(3)
    async with running(
        tmp_path, valkey, policies, upstream, durability=durability, spool_hold_s=2.0
    ) as gateway:

        async def answer() -> bytes:
            scene = Scene(gateway, tmp_path / "spool", tenant, valkey)
            exchange = scene.exchange()
            gateway.pipeline.start(exchange)
            await until(lambda: exchange.response_complete)
            return scene.transport.written

        (segment,) = segments(tmp_path / "spool")
        with hanging_writes(segment):
            assert FIRST_ANSWERS[durability] in await answer()
            await until(lambda: bool(gateway.readiness.reasons_not_ready()))
            assert gateway.readiness.reasons_not_ready() == ["the spool cannot be written"]
            refused = await answer()
            assert b" 503 " in refused
            assert b"metering_unavailable" in refused
            assert len(upstream.generations) == 1
        await until(lambda: not gateway.readiness.reasons_not_ready())
        assert b" 200 " in await answer()
    events = Scene(gateway, tmp_path / "spool", tenant, valkey).events()
    assert [event.gateway_seq for event in events] == [1, 2]


async def test_what_gathers_behind_a_write_that_hangs_is_bounded(tmp_path: Path) -> None:
    """Long before anybody's event is late."""
    spool = Spool(tmp_path, "00ab", 10**9, hold_s=3_600.0, gather_s=0.004)
    spool.start()
    await spool.append(payload(spool.next_seq))
    (segment,) = segments(tmp_path)
    num_appended = 1
    with hanging_writes(segment):
        while not spool.is_failing:
            spool.append(payload(spool.next_seq))
            num_appended += 1
            if num_appended % 1_000 == 0:
                await until(lambda: True)
            assert num_appended < 100_000
    await until(lambda: not spool.is_failing)
    assert await spool.stop(60.0) == 0
    written = b"".join(path.read_bytes() for path in segments(tmp_path))
    assert written == b"".join(frame(payload(n)) for n in range(1, num_appended + 1))


def payload(seq: int) -> bytes:
    return b'{"seq":%d}' % seq


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))
