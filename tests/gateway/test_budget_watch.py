"""How much of their budgets tenants have spent, as the store that decides has counted it."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from gateway.admission.quota_store import QuotaStore
from gateway.budget_watch import BudgetWatch
from gateway.grants import PolicySnapshot, snapshot_of
from gateway.resp_address import RespAddress
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import Bench, Terms, running_limiter
from tests.gateway.scene import until

RULES = (
    QuotaRule(tokens_per_day=1_000, tokens_per_month=10_000),
    QuotaRule(key_id="k1", model="model-a", tokens_per_day=500),
    QuotaRule(model="model-a", tokens_per_day=5, is_shadow=True),
)


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


@pytest.fixture
async def store(valkey: Valkey) -> AsyncIterator[QuotaStore]:
    found = QuotaStore(RespAddress.parse(valkey.url), 5.0)
    running = asyncio.create_task(found.run())
    await until(lambda: found.is_reachable)
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def snapshot(tenant: str) -> PolicySnapshot:
    key = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk")
    policy = TenantPolicy(tenant_id=tenant_id(tenant), tier="gold", keys=(key,), rules=RULES)
    return snapshot_of(PolicyDocument(version=1, tenants=(policy,)), bytes(16), datetime.now(UTC))


def told(watch: BudgetWatch) -> dict[str, float]:
    lines = [line for line in watch.render().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_what_is_spent_is_told_of_tenants_that_were_named(
    bench: Bench, store: QuotaStore
) -> None:
    reservation = bench.reservation(100, Terms(1_000, rules=RULES))
    assert (await bench.limiter.reserve(reservation)).refusal is None
    assert await bench.settle(reservation, 50)
    found = snapshot(bench.tenant)
    watch = BudgetWatch(store, lambda: found, (bench.tenant, "silent"), time.time)
    await watch.look()
    name = f'pandal_gateway_tenant_budget_used_ratio{{tenant="{bench.tenant}",rule='
    assert told(watch) == {
        f'{name}"all requests",budget="tokens_per_day"}}': 0.05,
        f'{name}"all requests",budget="tokens_per_month"}}': 0.005,
        f'{name}"key k1, model model-a",budget="tokens_per_day"}}': 0.1,
    }
    others = BudgetWatch(store, lambda: found, (), time.time)
    await others.look()
    assert others.render() == ""


async def test_of_a_store_that_is_away_nothing_is_told(bench: Bench) -> None:
    found = snapshot(bench.tenant)
    away = QuotaStore(RespAddress.parse("redis://127.0.0.1:1"), 0.1)
    watch = BudgetWatch(away, lambda: found, (bench.tenant,), time.time)
    await watch.look()
    assert watch.render() == ""
