"""Turns across gateways: what a tenant had elsewhere counts, over a real store."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from contracts.admission import ServiceClass
from contracts.names import fair_served_key, tenant_id
from gateway.admission.fair_queue import FairQueue, Service, Turn
from gateway.admission.quota_store import QuotaStore
from gateway.admission.share import Share
from gateway.resp_address import RespAddress
from gateway.shared_turns import SharedTurns
from tests.gateway.processes import Valkey
from tests.gateway.scene import until

_numbers = itertools.count()


class Gateway:
    """Its queue of one model, and its turns shared."""

    def __init__(self, store: QuotaStore) -> None:
        self.queue: FairQueue[None] = FairQueue(max_waiting=100, ageing_s=30.0)
        self.turns = SharedTurns(store, lambda: {"m": self.queue})

    def wait(self, share: Share) -> None:
        self.queue.push(Turn(share, 100, 100, 0.0, 1e9, None))

    def next_tenant(self) -> str:
        first = self.queue.first(0.0)
        assert first is not None
        self.queue.take(first, 0.0)
        return first.share.tenant


def share() -> Share:
    return Share(tenant_id(f"turns-{next(_numbers)}"), ServiceClass.STANDARD, 1)


@pytest.fixture
async def store(valkey: Valkey) -> AsyncIterator[QuotaStore]:
    store = QuotaStore(RespAddress.parse(valkey.url), 5.0)
    task = asyncio.create_task(store.run())
    await until(lambda: store.is_reachable)
    yield store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_a_tenant_had_at_another_gateway_counts(store: QuotaStore) -> None:
    here, there, busy, quiet = Gateway(store), Gateway(store), share(), share()
    for _ in range(3):
        here.wait(busy)
        here.wait(quiet)
    await here.turns.share()
    there.queue.charge(busy, 1_000, 0.0)
    await there.turns.share()
    await here.turns.share()
    assert [here.next_tenant() for _ in range(3)] == [quiet.tenant] * 3


async def test_nothing_is_counted_twice(store: QuotaStore, valkey: Valkey) -> None:
    here, there, tenant = Gateway(store), Gateway(store), share()
    for gateway in (here, there):
        gateway.queue.charge(tenant, 300, 0.0)
        for _ in range(3):
            await gateway.turns.share()
    here.queue.correct(tenant, -50, 0.0, 0.0)
    await here.turns.share()
    with valkey.client as client:
        key = fair_served_key(tenant.tenant)
        assert client.hmget(key, "m", "m returned") == [b"600", b"50"]
        assert 0 < client.pttl(key) <= 60_000


async def test_without_the_store_a_gateway_is_fair_by_itself(valkey: Valkey) -> None:
    gateway, busy, quiet = Gateway(QuotaStore(RespAddress.parse(valkey.url), 0.1)), share(), share()
    gateway.queue.charge(busy, 500, 0.0)
    gateway.wait(busy)
    gateway.wait(quiet)
    await gateway.turns.share()
    assert gateway.next_tenant() == quiet.tenant
    assert gateway.queue.unshared()[busy] == Service(500, 0), "told when it is there again"


async def test_a_correction_at_another_gateway_counts(store: QuotaStore) -> None:
    here, there, corrected, other = Gateway(store), Gateway(store), share(), share()
    for _ in range(9):
        here.wait(corrected)
        here.wait(other)
    await here.turns.share()
    there.queue.charge(corrected, 1_000, 0.0)
    await there.turns.share()
    await here.turns.share()
    there.queue.correct(corrected, -800, 0.0, 0.0)
    await there.turns.share()
    await here.turns.share()
    turns = [here.next_tenant() for _ in range(6)]
    assert turns.count(corrected.tenant) == 2, "as if it had had two hundred tokens"


async def test_sums_that_began_anew_are_not_taken_for_corrections(
    store: QuotaStore, valkey: Valkey
) -> None:
    here, there, busy, quiet = Gateway(store), Gateway(store), share(), share()
    for _ in range(9):
        here.wait(busy)
        here.wait(quiet)
    there.queue.charge(busy, 5_000, 0.0)
    await there.turns.share()
    await here.turns.share()
    with valkey.client as client:
        client.delete(fair_served_key(busy.tenant))
    there.queue.charge(busy, 300, 0.0)
    await there.turns.share()
    await here.turns.share()
    assert [here.next_tenant() for _ in range(4)] == [quiet.tenant] * 3 + [busy.tenant]


async def test_what_was_sent_and_not_answered_is_not_sent_again() -> None:
    """A store that greets, and falls silent."""
    num_added = num_open = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_added, num_open
        num_open += 1
        while word := await reader.readline():
            if word == b"PING\r\n":
                writer.write(b"+PONG\r\n")
            elif word == b"CLUSTER\r\n":
                writer.write(b"-ERR no cluster\r\n")
            num_added += word == b"HINCRBY\r\n"
        writer.close()
        await writer.wait_closed()
        num_open -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = QuotaStore(RespAddress.parse(f"redis://127.0.0.1:{port}"), 0.2)
    task = asyncio.create_task(store.run())
    await until(lambda: store.is_reachable)
    gateway, tenant = Gateway(store), share()
    gateway.queue.charge(tenant, 500, 0.0)
    await gateway.turns.share()
    await until(lambda: num_added >= 2)
    assert num_added == 2
    assert gateway.queue.unshared() == {}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.close()
    await until(lambda: num_open == 0)
