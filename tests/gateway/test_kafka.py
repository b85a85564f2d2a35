"""The spool's way to Kafka: at least once, in order, through outages, without holding requests."""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiokafka.protocol.transaction import InitProducerIdRequest

from contracts.spool import LOCKED_WITHIN_S, frame, segment_name
from contracts.usage import encode_usage_event
from gateway.outbox.kafka import KafkaShipper
from gateway.outbox.segments import SegmentFaults, SegmentFile
from gateway.outbox.unshipped import Batch, unshipped
from tests.gateway.conftest import Tenant
from tests.gateway.hanging_file import replace_by_pipe, wait_for_reader
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.spooled import usage_event
from tests.gateway.upstream_server import Upstream
from tests.gateway.usage_topic import consume, create_topic, speak_init_producer_id_v3
from tests.support.kafka_brokers import (
    Broker,
    SecuredListener,
    apache_kafka,
    kafka_home,
    secured_listener,
    tansu,
)
from tests.support.waiting import eventually

OWN_BOOT = "0000000000bb"


def write(folder: Path, boot: str, index: int, seqs: range, tail: bytes = b"") -> Path:
    path = folder / segment_name(boot, index)
    lines = [frame(encode_usage_event(usage_event(seq, boot))) for seq in seqs]
    with path.open("ab") as file:
        file.write(b"".join(lines) + tail)
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Tansu, which needs a newer message than aiokafka sends."""
    before = InitProducerIdRequest._CLASSES
    speak_init_producer_id_v3()
    broker = tansu(tmp_path)
    yield broker
    broker.stop()
    InitProducerIdRequest._CLASSES = before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@asynccontextmanager
async def shipping(broker: Broker, folder: Path) -> AsyncIterator[list[int]]:
    """Runs a shipper; yields the sizes of the batches it has shipped so far."""
    shipped: list[int] = []
    later_s = time.time() + LOCKED_WITHIN_S  # what is not locked now will not be
    faults = SegmentFaults()
    open_pass = partial(unshipped, folder, OWN_BOOT, lambda: later_s, lambda: False, faults)
    brokers = {"bootstrap_servers": broker.bootstrap}
    shipper = KafkaShipper(lambda: brokers, open_pass, shipped.append)
    task = asyncio.create_task(shipper.run())
    try:
        yield shipped
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_for(shipped: list[int], count: int) -> None:
    await asyncio.to_thread(eventually, lambda: sum(shipped) >= count, "events to be shipped")


async def test_every_boots_events_arrive_in_order_keyed_by_tenant(
    broker: Broker, folder: Path
) -> None:
    broker.start()
    await create_topic(broker.bootstrap)
    earlier = write(folder, "0000000000aa", 0, range(1, 4), tail=b"torn")
    SegmentFile(earlier).record_told()
    own = write(folder, OWN_BOOT, 0, range(1, 6))
    async with shipping(broker, folder) as shipped:
        await wait_for(shipped, 8)
        write(folder, OWN_BOOT, 0, range(6, 8))
        await wait_for(shipped, 10)
        records = await consume(broker.bootstrap, 10)
    assert all(key == e.tenant_id.encode() for key, e in records)
    by_boot = [(e.gateway_boot_id, e.gateway_seq) for _, e in records]
    assert by_boot == [("0000000000aa", n) for n in (1, 2, 3)] + [
        (OWN_BOOT, n) for n in range(1, 8)
    ]
    assert not earlier.exists(), "shipped whole, and its writer is gone"
    assert own.exists(), "still being written"


async def wait_for_log(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await asyncio.to_thread(eventually, lambda: text in caplog.text, f"{text!r} in the log")


async def test_a_broker_that_is_down_at_first_is_waited_for(
    broker: Broker, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, OWN_BOOT, 0, range(1, 4))
    async with shipping(broker, folder) as shipped:
        await wait_for_log(caplog, "kafka unreachable")
        assert shipped == []
        broker.start()
        await create_topic(broker.bootstrap)
        await wait_for(shipped, 3)
        records = await consume(broker.bootstrap, 3)
    assert [e.gateway_seq for _, e in records] == [1, 2, 3]


async def test_a_broker_that_loses_its_memory_gets_what_comes_after(
    broker: Broker, folder: Path
) -> None:
    """Its producer state is gone: the old producer would fail for ever."""
    broker.start()
    await create_topic(broker.bootstrap)
    write(folder, OWN_BOOT, 0, range(1, 3))
    async with shipping(broker, folder) as shipped:
        await wait_for(shipped, 2)
        broker.stop()
        broker.start()
        await create_topic(broker.bootstrap)
        write(folder, OWN_BOOT, 0, range(3, 5))
        await wait_for(shipped, 4)
        records = await consume(broker.bootstrap, 2)
    assert {e.gateway_seq for _, e in records} == {3, 4}


async def test_a_stop_while_the_broker_is_away_does_not_hang(
    broker: Broker, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="aiokafka")  # which commands tested beside it hush
    broker.start()
    await create_topic(broker.bootstrap)
    write(folder, OWN_BOOT, 0, range(1, 3))
    async with shipping(broker, folder) as shipped:
        await wait_for(shipped, 2)
        broker.stop()
        write(folder, OWN_BOOT, 0, range(3, 5))
        await wait_for_log(caplog, "Unable connect to node")  # aiokafka's, while it tries to send
    assert sum(shipped) == 2
    assert SegmentFile(folder / segment_name(OWN_BOOT, 0)).shipped_bytes() > 0


async def test_a_living_writers_segment_is_left_to_its_own_shipper(
    broker: Broker, folder: Path
) -> None:
    broker.start()
    await create_topic(broker.bootstrap)
    foreign = write(folder, "0000000000aa", 0, range(1, 4))
    write(folder, OWN_BOOT, 0, range(1, 3))
    descriptor = os.open(foreign, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        async with shipping(broker, folder) as shipped:
            await wait_for(shipped, 2)
            write(folder, OWN_BOOT, 0, range(3, 5))
            await wait_for(shipped, 4)  # another pass, on which the foreign one came first
            assert sum(shipped) == 4
    finally:
        os.close(descriptor)
    assert foreign.exists()


async def test_a_corrupt_line_is_set_aside_and_the_rest_goes_on(
    broker: Broker, folder: Path
) -> None:
    broker.start()
    await create_topic(broker.bootstrap)
    path = write(folder, "0000000000aa", 0, range(1, 2), tail=b"00000000 {}\n")
    write(folder, "0000000000aa", 0, range(2, 3))
    async with shipping(broker, folder) as shipped:
        await wait_for(shipped, 2)
        records = await consume(broker.bootstrap, 2)
    assert [e.gateway_seq for _, e in records] == [1, 2]
    assert path.with_suffix(".corrupt").read_bytes() == b"00000000 {}\n"


async def test_a_fault_of_our_own_disk_is_not_the_brokers(
    broker: Broker, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker.start()
    await create_topic(broker.bootstrap)
    write(folder, OWN_BOOT, 0, range(1, 3))
    async with shipping(broker, folder) as shipped:
        await wait_for(shipped, 2)
        (folder / "shipped").rename(folder / "elsewhere")
        (folder / "shipped").write_text("a file where the checkpoints' folder should be")
        await wait_for_log(caplog, "spool cannot be read")
        (folder / "shipped").unlink()
        (folder / "elsewhere").rename(folder / "shipped")
        write(folder, OWN_BOOT, 0, range(3, 5))
        await wait_for(shipped, 4)
    assert "kafka unreachable" not in caplog.text
    assert caplog.text.count("kafka connected") == 1, "a healthy producer is kept"


async def test_a_disk_that_hangs_holds_nothing_else_up(folder: Path) -> None:
    pipe = folder / "disk"
    replace_by_pipe(pipe)

    def hanging() -> Generator[Batch]:
        """A pass whose first read waits for who writes into the pipe."""
        pipe.read_bytes()
        yield []

    shipper = KafkaShipper(lambda: {"bootstrap_servers": "127.0.0.1:1"}, hanging, print)
    task = asyncio.create_task(shipper.run())
    os.close(await wait_for_reader(pipe))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_line_longer_than_a_batch_is_read_whole(folder: Path) -> None:
    path = write(folder, OWN_BOOT, 0, range(1, 4), tail=b"torn")
    segment = SegmentFile(path)
    lines, offset = [], 0
    while batch := segment.read_lines(offset, 10):
        lines += batch
        offset += sum(map(len, batch))
    assert b"".join(lines) + b"torn" == path.read_bytes()


@pytest.fixture
def secured(tmp_path: Path) -> SecuredListener:
    return secured_listener(tmp_path)


@pytest.fixture
def kafka(tmp_path: Path, secured: SecuredListener) -> Iterator[Broker]:
    broker = apache_kafka(kafka_home(), tmp_path, secured=secured)
    yield broker
    broker.stop()


async def test_a_gateway_and_apache_kafka(
    kafka: Broker,
    secured: SecuredListener,
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
) -> None:
    """Down at the start, up later: requests never wait, and every event arrives once.

    Over TLS, to a broker that asks who we are.
    """
    gateway = Gateway(
        tmp_path,
        quota_url=valkey.url,
        policy_file=policies.path,
        upstreams={"replica-0": upstream},
        **secured.variables("GATEWAY_"),
    )
    gateway.start()
    policies.add("kafka-tenant", "sk-kafka")
    tenant = Tenant("kafka-tenant", "sk-kafka", gateway, valkey)
    await tenant.accepted()
    for _ in range(5):
        assert (await tenant.chat(chat())).status == 200
    spooled = {e.event_id for e in tenant.events()}
    await asyncio.to_thread(kafka.start)
    await create_topic(kafka.bootstrap)
    records = await consume(kafka.bootstrap, 5)
    assert {e.event_id for _, e in records} == spooled
    assert gateway.stop() == 0
