"""Turns across gateways: what a tenant had elsewhere counts, over a real store."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from contracts.admission import ServiceClass
from contracts.names import fair_served_key, tenant_id
from gateway.admission.fair_queue import FairQueue, Place, Share
from gateway.admission.quota_store import QuotaStore
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
        self.queue.push(Place(share, 100, 100, 0.0, 1e9, None))

    def next_tenant(self) -> str:
        first = self.queue.first(0.0)
        assert first is not None
        self.queue.take(first)
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
    there.queue.charge(busy, 1_000)
    await there.turns.share()
    await here.turns.share()
    assert [here.next_tenant() for _ in range(3)] == [quiet.tenant] * 3


async def test_nothing_is_counted_twice(store: QuotaStore, valkey: Valkey) -> None:
    here, there, tenant = Gateway(store), Gateway(store), share()
    for gateway in (here, there):
        gateway.queue.charge(tenant, 300)
        for _ in range(3):
            await gateway.turns.share()
    here.queue.charge(tenant, -50)
    await here.turns.share()
    with valkey.client as client:
        key = fair_served_key(tenant.tenant)
        assert client.hget(key, "m") == b"550"
        assert 0 < client.pttl(key) <= 60_000


async def test_without_the_store_a_gateway_is_fair_by_itself(valkey: Valkey) -> None:
    gateway, busy, quiet = Gateway(QuotaStore(RespAddress.parse(valkey.url), 0.1)), share(), share()
    gateway.queue.charge(busy, 500)
    gateway.wait(busy)
    gateway.wait(quiet)
    await gateway.turns.share()
    assert gateway.next_tenant() == quiet.tenant
    assert gateway.queue.unshared()[busy] == 500, "told when it is there again"
