"""Claims of an ``Idempotency-Key`` in the store that gateways share: whose is it, who lost it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from contracts.names import tenant_id
from gateway.admission.resp import RespClient, pack
from gateway.api.context import Operation
from gateway.completion import Flow
from gateway.errors import IdempotencyMismatch, Interrupted
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.resilience.idempotency import Idempotency, IdempotencyLimits, digest_of
from gateway.resilience.shared_answer import Recording, SharedAnswer
from gateway.resilience.shared_keys import SharedKeyLimits, SharedKeys
from gateway.resp_address import RespAddress
from tests.gateway.processes import Valkey
from tests.gateway.scene import RecordedTransport, until

NAME = "a-key"
OWNER = tenant_id("t"), "key-1"
LIMITS = IdempotencyLimits(kept_s=60.0, max_kept=100, max_kept_bytes=10_000, answer_timeout_s=60.0)


def exchange(body: bytes = b"") -> Exchange:
    head = request_head(Operation.COMPLETIONS, [])
    made = Exchange(RecordedTransport(), head, on_complete=lambda: None)
    made.body = body
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Valkey]:
    store = Valkey(tmp_path)
    store.start()
    yield store
    store.stop()


@pytest.fixture
async def client(store: Valkey) -> AsyncIterator[RespClient]:
    client = RespClient(RespAddress.parse(store.url), call_deadline_s=5.0)
    running = asyncio.create_task(client.run())
    await client.connected.wait()
    yield client
    running.cancel()


@pytest.fixture
def keys(client: RespClient) -> SharedKeys:
    numbers = count()
    limits = SharedKeyLimits(lease_s=3.0, kept_s=60.0, max_answer_bytes=1_000)
    return SharedKeys(client, limits, lambda: f"holder-{next(numbers)}")


def held(store: Valkey, name: str = NAME) -> bool:
    with store.client as client:
        return bool(client.exists(name))


async def test_a_claim_that_the_store_has_lost_is_taken_back(
    store: Valkey, keys: SharedKeys
) -> None:
    claim = keys.new_claim(b"d")
    assert (await keys.put(NAME, claim, exchange())).record == claim
    lease = keys.lease(NAME, claim)
    with store.client as direct:
        direct.flushall()
    await until(lambda: held(store))
    assert (await keys.put(NAME, keys.new_claim(b"d"), exchange())).record == claim
    lease.drop()
    await until(lambda: not held(store))


async def test_a_claim_that_another_has_by_now_is_told_once(
    store: Valkey, keys: SharedKeys, caplog: pytest.LogCaptureFixture
) -> None:
    claim = keys.new_claim(b"d")
    await keys.put(NAME, claim, exchange())
    lease = keys.lease(NAME, claim)
    with store.client as direct:
        direct.set(NAME, b"another's")
    await until(lambda: bool(caplog.records))
    lease.keep(None)
    await until(lambda: held(store))
    assert [r.levelname for r in caplog.records if "claim was lost" in r.message] == ["WARNING"]
    assert keys.num_lost == 1


async def test_a_client_that_leaves_takes_its_claim_along(
    store: Valkey, client: RespClient, keys: SharedKeys
) -> None:
    leaving = exchange()
    putting = asyncio.create_task(keys.put(NAME, keys.new_claim(b"d"), leaving))
    await asyncio.sleep(0)
    leaving.client_lost()
    with pytest.raises(Interrupted):
        await putting
    left_ms = await client.call(pack("PTTL", NAME))
    assert left_ms == -2, "no such key"


async def test_what_the_store_refused_and_then_took_is_made_once(
    store: Valkey, client: RespClient, keys: SharedKeys
) -> None:
    idempotency = Idempotency(LIMITS, asyncio.get_running_loop().time, keys)
    ends: list[SharedAnswer | Recording | Exception] = []

    async def ask(body: bytes) -> None:
        try:
            ends.append(await idempotency.answer(OWNER, b"k", exchange(body)))
        except IdempotencyMismatch as mismatch:
            ends.append(mismatch)

    with store.client as direct:
        direct.config_set("maxmemory", 1)
        flows = [started(ask(b"one"))]
        await asyncio.sleep(0)
        direct.config_set("maxmemory", 0)
        flows.append(started(ask(b"another")))
    await until(lambda: all(flow.is_over for flow in flows))
    answer, mismatch = ends
    assert isinstance(answer, SharedAnswer)
    assert isinstance(mismatch, IdempotencyMismatch)
    answer.send(200, b"", b"made")
    again = await idempotency.answer(OWNER, b"k", exchange(b"one"))
    assert again is answer


async def test_anothers_answer_is_kept_for_as_long_as_it_is_there(
    store: Valkey, keys: SharedKeys
) -> None:
    now_s = 100.0
    there, here = (Idempotency(LIMITS, lambda: now_s, keys) for _ in range(2))
    for made_by, key in ((here, b"own"), (there, b"k")):
        answer = await made_by.answer(OWNER, key, exchange())
        assert isinstance(answer, SharedAnswer)
        answer.send(200, b"", b"made")
    digest = digest_of(exchange())
    with store.client as direct:
        await until(lambda: all(direct.pttl(name) > 10_000 for name in direct.keys("*")))
        for name in direct.keys("*"):
            direct.pexpire(name, 30_000)
    assert isinstance(await here.answer(OWNER, b"k", exchange()), Recording)
    now_s += 29.0
    assert here.find(OWNER, b"k", digest) is not None
    now_s += 2.0
    assert here.find(OWNER, b"k", digest) is None, "though it is behind one that is kept longer"
    assert here.find(OWNER, b"own", digest) is not None


def started(coroutine: Coroutine[Any, None, None]) -> Flow:
    flow = Flow(coroutine, lambda _: None)
    flow.start()
    return flow
