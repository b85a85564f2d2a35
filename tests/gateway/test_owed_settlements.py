"""What a killed gateway takes along is told to the quota store by the one that finds its spool."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from contracts.admission import AdmissionPolicy
from contracts.debts import OwedSettlement, encode_debt
from contracts.names import quota_holds_key, quota_owed, tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import ModelPrice, QuotaRule
from contracts.spool import frame, segment_name
from contracts.usage import encode_usage_event
from gateway.admission.debts import Debt, Debts
from gateway.admission.quota_scripts import RESERVE, greeting, pack_number
from gateway.admission.quota_store import QuotaStore
from gateway.admission.quota_tenants import QuotaTenants
from gateway.admission.reserve_call import num_arguments_of, reserve_arguments
from gateway.admission.script_runner import ScriptRunner
from gateway.admission.verdict import Reservation
from gateway.errors import QuotaRefused
from gateway.grants import snapshot_of
from gateway.outbox.orphans import Untold, orphans
from gateway.outbox.segments import SegmentFaults, SegmentFile
from gateway.owed_settlements import OwedSettlements, debt_of
from gateway.recovered_settlements import RecoveredSettlements
from gateway.resp_address import RespAddress
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.quota_bench import Bench, Terms, grant_of, running_limiter
from tests.gateway.scene import until
from tests.gateway.spooled import usage_event
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.waiting import eventually


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    folder = tmp_path / "own-valkey"
    folder.mkdir()
    valkey = Valkey(folder)
    valkey.start()
    yield valkey
    valkey.stop(signal.SIGKILL)


@asynccontextmanager
async def paying(valkey: Valkey) -> AsyncIterator[Debts]:
    store = QuotaStore(RespAddress.parse(valkey.url), 5.0, greeting("debts"))
    task = asyncio.create_task(store.run())
    await until(lambda: store.is_reachable)
    yield Debts(store)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def debt(reservation_id: str, tokens: int, *, is_untold: bool) -> Debt:
    return Debt(reservation_id, tokens, tokens, 0, is_untold)


async def test_what_is_held_is_settled_once_whoever_does_it(bench: Bench) -> None:
    terms = Terms(1_000, rules=(QuotaRule(tokens_per_day=10_000),))
    owed, settled = (bench.reservation(100, terms) for _ in range(2))
    for reservation in (owed, settled):
        await bench.limiter.reserve(reservation)
    await bench.settle(settled, 30)
    some = [debt(r.reservation_id, 30, is_untold=False) for r in (owed, settled)]
    async with paying(bench.valkey) as debts:
        assert await debts.pay(tenant_id(bench.tenant), some) == 1
        assert await debts.pay(tenant_id(bench.tenant), some) == 0
    await bench.settle(owed, 30)
    assert bench.valkey.settled(bench.tenant) == {"requests": 2, "tokens": 60}
    assert bench.spent()["d tokens"] == 60


async def test_what_the_store_never_heard_of_counts_once_whoever_tells_it(
    own_valkey: Valkey,
) -> None:
    """The gateway that decided it is alive after all, and tells it as well."""
    async with running_limiter(own_valkey.url, share_lease_s=60.0) as limiter:
        bench = Bench(limiter, own_valkey)
        own_valkey.stop()
        local = bench.reservation(100, Terms(1_000))
        assert (await limiter.reserve(local)).is_local
        limiter.settle(local, used_tokens=30, used_nano_usd=0)
        assert limiter.is_owing
        own_valkey.start()
        async with paying(own_valkey) as debts:
            await debts.pay(
                tenant_id(bench.tenant), [debt(local.reservation_id, 30, is_untold=True)]
            )
        assert await limiter.flush(60.0) == 0
    assert own_valkey.settled(bench.tenant) == {"requests": 1, "tokens": 30}
    assert own_valkey.num_open_reservations(bench.tenant) == 0


async def test_what_the_store_and_its_gateway_both_decided_counts_once(
    bench: Bench,
) -> None:
    """The store's answer was lost, and the gateway went on by itself."""
    owed, told = (bench.reservation(100, Terms(1_000)) for _ in range(2))
    for reservation in (owed, told):
        await bench.limiter.reserve(reservation)
    await decide_again(bench, told)
    await bench.settle(told, 30)
    some = [debt(r.reservation_id, 30, is_untold=True) for r in (owed, told)]
    async with paying(bench.valkey) as debts:
        assert await debts.pay(tenant_id(bench.tenant), some) == 1
        assert await debts.pay(tenant_id(bench.tenant), some) == 0
    assert bench.valkey.settled(bench.tenant) == {"requests": 2, "tokens": 60}


async def decide_again(bench: Bench, reservation: Reservation) -> None:
    """What a gateway says of an answer that it missed."""
    store = QuotaStore(RespAddress.parse(bench.valkey.url), 5.0, greeting("again"))
    task = asyncio.create_task(store.run())
    await until(lambda: store.is_reachable)
    arguments = reserve_arguments(pack_number(60_000), reservation, is_decided=True)
    tenant = QuotaTenants().tenant(reservation.plan.tenant_id)
    await ScriptRunner(store).run(RESERVE, tenant, arguments, num_arguments_of(reservation))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_nobody_else_tells_counts_once(valkey: Valkey, bench: Bench) -> None:
    some = [debt("untold", 30, is_untold=True), debt("forgotten", 30, is_untold=False)]
    async with paying(valkey) as debts:
        assert await debts.pay(tenant_id(bench.tenant), some) == 1
        assert await debts.pay(tenant_id(bench.tenant), some) == 0
    assert valkey.settled(bench.tenant) == {"requests": 1, "tokens": 30}


async def test_a_store_that_lets_us_not_look_for_debts_or_forget_them_says_so(
    own_valkey: Valkey,
) -> None:
    """Taken for an empty list, or for done, they would be paid never, or for ever."""
    with own_valkey.client as client:
        client.execute_command("ACL", "SETUSER", "default", "-lrange", "-lrem")
    async with paying(own_valkey) as debts:
        with pytest.raises(QuotaRefused) as looking:
            await debts.told()
        with pytest.raises(QuotaRefused) as forgetting:
            await debts.forget([b"a debt"])
    assert looking.value.reason == forgetting.value.reason == "NOPERM"


async def test_one_tenant_whom_the_store_refuses_is_in_nobodys_way(
    tmp_path: Path, own_valkey: Valkey
) -> None:
    """Of what is in the spool, and of what an auditor has recovered."""
    now_s = time.time()
    path, occurred_at = tmp_path / segment_name("0000000000aa", 0), datetime.now(UTC)
    events = [
        structs.replace(usage_event(n, "aa"), occurred_at=occurred_at, is_locally_admitted=True)
        for n in range(1, 4)
    ]
    path.write_bytes(b"".join(frame(encode_usage_event(event)) for event in events))
    recovered = [
        OwedSettlement(
            tenant_id=f"tenant-{n}", event_id=f"r-{n}", tokens=5, nano_usd=0, is_untold=True
        )
        for n in (1, 2)
    ]
    refused, others = "tenant-1", ("tenant-0", "tenant-2")
    blocked = quota_holds_key(tenant_id(refused))
    with own_valkey.client as client:
        client.set(blocked, "no hash")
        client.rpush(quota_owed(), *map(encode_debt, recovered))

    def settled(*tenants: str) -> list[dict[str, int]]:
        return [own_valkey.settled(tenant) for tenant in tenants]

    nobody = snapshot_of(PolicyDocument(version=1, tenants=[]), b"", occurred_at)
    to_tell: dict[str, Untold] = {}
    async with paying(own_valkey) as debts:
        owed = OwedSettlements(
            lambda: orphans(tmp_path, "0000000000bb", lambda: now_s, SegmentFaults(), to_tell),
            debts,
            lambda: nobody,
        )
        tasks = [
            asyncio.create_task(loop()) for loop in (owed.run, RecoveredSettlements(debts).run)
        ]
        first = [{"requests": 1, "tokens": 2}, {"requests": 2, "tokens": 7}]
        await until(lambda: settled(*others) == first)
        with own_valkey.client as client:
            left = [encode_debt(recovered[0])]
            await until(lambda: client.lrange(quota_owed(), 0, -1) == left)
            client.delete(blocked)
        await until(lambda: settled(refused) == [{"requests": 2, "tokens": 7}])
        await until(lambda: not SegmentFile(path).may_owe(now_s))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert settled(*others) == first


def test_a_debt_is_what_the_gateway_would_have_settled() -> None:
    event = msgspec.structs.replace(
        usage_event(1, "aa"), input_uncached_tokens=6, input_cache_read_tokens=10
    )
    price = ModelPrice(
        model="m", input_uncached=1_000_000, input_cache_read=100_000, output_text=2_000_000
    )
    policy = TenantPolicy(
        tenant_id=tenant_id("tenant-1"),
        tier="gold",
        admission=AdmissionPolicy(cached_token_weight=0.5),
    )
    key = ApiKeyRecord(key_id="key", key_hash="hash", key_prefix="sk")
    grant = grant_of(policy, key, {"m": price})
    assert debt_of(event, grant) == Debt("aa-1", 17, 12, 9_000, is_untold=False)
    adapted = msgspec.structs.replace(event, model="law", adapter="law", adapter_of="m")
    assert debt_of(adapted, grant).nano_usd == 9_000
    assert debt_of(event, None) == Debt("aa-1", 17, 17, 0, is_untold=False)


async def test_a_gateway_killed_in_an_outage_loses_nothing_of_what_it_owed(
    tmp_path: Path,
    own_valkey: Valkey,
    policies: Policies,
    start_gateway: Callable[..., Gateway],
    upstream: Upstream,
) -> None:
    settings = {"quota_url": own_valkey.url, "GATEWAY_SPOOL_DIR": str(tmp_path / "spool")}
    gateway = start_gateway(**settings)
    policies.add("owing", "sk-owing")
    owing = Tenant("owing", "sk-owing", gateway, own_valkey)
    await owing.accepted()

    async def lose_the_store(generation: Generation) -> None:
        await asyncio.to_thread(own_valkey.stop, signal.SIGKILL)
        await words(3)(generation)

    assert (await owing.chat(chat())).status == 200
    upstream.behaviour = lose_the_store
    assert (await owing.chat(chat())).status == 200, "held by the store"
    upstream.behaviour = words(5)
    assert (await owing.chat(chat())).status == 200, "admitted without it"
    gateway.stop(signal.SIGKILL)
    own_valkey.start()
    assert own_valkey.settled("owing")["requests"] == 1
    start_gateway(**settings)
    events = owing.events()
    assert [event.is_locally_admitted for event in events] == [False, False, True]
    expected = {"requests": 3, "tokens": sum(event.total_tokens for event in events)}
    await asyncio.to_thread(
        eventually, lambda: own_valkey.settled("owing") == expected, "the debts to be settled"
    )
    assert own_valkey.num_open_reservations("owing") == 0
    policies.remove("owing")
