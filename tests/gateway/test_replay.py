"""What is replayed under the policy in force is what happened; under another, what would have."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from contracts.names import quota_record_key, tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import ModelPrice, QuotaRule
from gateway.admission.record import Noted, NotedAsk, noted
from gateway.admission.replay import Decision, Replay
from gateway.admission.resp import RespClient, pack
from gateway.resp_address import RespAddress
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import Bench, Terms, running_limiter

KEYS = tuple(ApiKeyRecord(key_id=k, key_hash=k, key_prefix="sk") for k in ("k1", "k2"))
PRICE = ModelPrice(model="model-a", input_uncached=20, input_cache_read=5, output_text=60)
TERMS = Terms(
    tokens=3_000,
    requests=40,
    prices=(PRICE,),
    rules=(
        QuotaRule(key_id="k1", tokens_per_minute=1_500, concurrent_requests=3),
        QuotaRule(model="model-b", requests_per_minute=9),
        QuotaRule(tokens_per_day=6_000, nano_usd_per_month=10**6),
        QuotaRule(key_id="k2", tokens_per_minute=700, is_shadow=True),
    ),
)


def document(tenant: str, terms: Terms) -> PolicyDocument:
    policy = TenantPolicy(
        tenant_id=tenant_id(tenant),
        tier="gold",
        tokens_per_minute=terms.tokens,
        requests_per_minute=terms.requests,
        rules=terms.rules,
        keys=KEYS,
    )
    prices = (*terms.prices, ModelPrice(model="model-b", **_PRICES))
    return PolicyDocument(version=1, tenants=(policy,), prices=prices)


_PRICES = {"input_uncached": 1, "input_cache_read": 1, "output_text": 1}


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


@pytest.fixture
async def store(valkey: Valkey) -> AsyncIterator[RespClient]:
    client = RespClient(RespAddress.parse(valkey.url), 20.0)
    running = asyncio.create_task(client.run())
    await client.connected.wait()
    yield client
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def record_of(store: RespClient, tenant: str) -> list[Noted]:
    key = quota_record_key(tenant_id(tenant))
    return list(noted(await store.call(pack("XRANGE", key, "-", "+"))))


async def replayed(store: RespClient, bench: Bench, terms: Terms) -> list[Decision]:
    """In the place of the tenant, whose counters are lost by it."""
    record = await record_of(store, bench.tenant)
    names = ("bucket", "budget", "reservations", "holds", "swept", "settled", "turns", "line")
    await store.call(pack("DEL", bench.key("record"), *map(bench.key, names)))

    async def call(command: bytes) -> object:
        return await store.call(command)

    return await Replay(call, document(bench.tenant, terms), tenant_id(bench.tenant)).run(record)


async def busy_minute(bench: Bench, terms: Terms, seed: int) -> None:
    """Asks of both keys to two models, some refused, some released, some never settled."""
    chance = random.Random(seed)
    running = []
    for _ in range(120):
        who = {
            "key_id": chance.choice(("k1", "k2")),
            "model": chance.choice(("model-a", "model-b")),
        }
        tokens = chance.randint(1, 150)
        ask = bench.reservation(tokens, terms, nano_usd=tokens, turn=chance.randint(1, 9), **who)
        verdict = await bench.limiter.reserve(ask)
        if verdict.refusal is None:
            running.append((ask, tokens))
        while running and chance.random() < 0.6:
            done, tokens = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.1:
                await bench.limiter.release(done)
            else:
                await bench.settle(done, chance.randint(0, 2 * tokens), chance.randint(0, 300))


@pytest.mark.parametrize("seed", range(3))
async def test_the_policy_in_force_decides_again_as_it_did(
    bench: Bench, store: RespClient, seed: int
) -> None:
    both = replace(TERMS, prices=(PRICE, ModelPrice(model="model-b", **_PRICES)))
    await busy_minute(bench, both, seed)
    found = await replayed(store, bench, replace(both, prices=(PRICE,)))
    assert len(found) == 120
    assert {d.refused_by is None for d in found} == {True, False}
    assert [d.refused_by is None for d in found] == [d.ask.is_admitted for d in found]


async def test_a_tighter_policy_refuses_whom_it_would_have(bench: Bench, store: RespClient) -> None:
    terms = Terms(tokens=10_000)
    for _ in range(4):
        await bench.settle(await admitted(bench, terms, 100), 100)
    found = await replayed(store, bench, Terms(tokens=250))
    assert [d.refused_by for d in found] == [None, None, *["tokens per minute"] * 2]


async def test_a_wider_policy_serves_what_was_refused_once(bench: Bench, store: RespClient) -> None:
    """It comes again until it is served: that is one request, not many."""
    terms = Terms(tokens=1_000, requests=1)
    await bench.settle(await admitted(bench, terms, 10), 10)
    for turn in (7, 7, 8):
        assert (await bench.ask(10, terms, turn=turn)).refusal is not None
    found = await replayed(store, bench, Terms(tokens=1_000))
    assert [(int(d.ask.turn), d.ask.is_admitted, d.refused_by) for d in found[1:]] == [
        (7, False, None),
        (8, False, None),
    ]


async def test_a_key_or_a_model_that_is_gone_is_told(bench: Bench, store: RespClient) -> None:
    await admitted(bench, Terms(tokens=1_000), 10, key_id="k3")
    (found,) = await replayed(store, bench, Terms(tokens=1_000))
    assert found.refused_by == "the key is no longer good"


async def test_the_record_is_bounded_and_without_prompts(bench: Bench, store: RespClient) -> None:
    await admitted(bench, Terms(tokens=1_000), 10)
    (ask,) = await record_of(store, bench.tenant)
    assert isinstance(ask, NotedAsk)
    assert (ask.key_id, ask.model, ask.tokens, ask.is_admitted) == ("k1", "model-a", 10, True)
    assert 0 < await store.call(pack("PTTL", bench.key("record"))) <= 3_600_000


async def test_what_is_older_than_an_hour_leaves_the_record(
    bench: Bench, store: RespClient
) -> None:
    """By and by: the store gives up whole blocks of entries."""
    record = bench.key("record")
    for number in range(1, 201):
        await store.call(pack("XADD", record, f"{number}-0", "reserve", "of 1970"))
    await admitted(bench, Terms(tokens=1_000), 10)
    num_left = await store.call(pack("XLEN", record))
    assert isinstance(num_left, int)
    assert 1 <= num_left <= 101


async def admitted(bench: Bench, terms: Terms, tokens: int, **who: str):
    reservation = bench.reservation(tokens, terms, **who)
    assert (await bench.limiter.reserve(reservation)).refusal is None
    return reservation
