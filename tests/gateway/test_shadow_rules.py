"""A rule on trial counts what it would refuse, and refuses nothing."""

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from gateway.grants import PolicySnapshot, snapshot_of
from gateway.shadow_metrics import ShadowMetrics
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway, Valkey
from tests.gateway.quota_bench import Bench, Terms, running_limiter
from tests.gateway.scene import until

SHADOW = QuotaRule(tokens_per_minute=100, is_shadow=True)


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


async def test_it_counts_and_refuses_nothing(bench: Bench) -> None:
    began_s = time.monotonic()
    terms = Terms(tokens=1_000, rules=(SHADOW,))
    verdicts = [await bench.ask(60, terms) for _ in range(3)]
    assert [v.refusal for v in verdicts] == [None, None, None]
    assert [v.shadows for v in verdicts] == [0, 1, 1]
    level = bench.level()
    assert 820 <= level <= 821 + (time.monotonic() - began_s) * 1_000 / 60


async def test_what_it_would_refuse_takes_nothing_from_it(bench: Bench) -> None:
    """As if it had been enforced: a later request that fits is let in by it."""
    terms = Terms(tokens=1_000, rules=(SHADOW,))
    assert [(await bench.ask(tokens, terms)).shadows for tokens in (60, 60, 40)] == [0, 1, 0]


async def test_each_of_several_is_told_apart(bench: Bench) -> None:
    rules = (
        QuotaRule(key_id="k1", requests_per_minute=1, is_shadow=True),
        QuotaRule(key_id="k2", requests_per_minute=1, is_shadow=True),
        QuotaRule(model="model-a", tokens_per_day=50, is_shadow=True),
        QuotaRule(concurrent_requests=2),
    )
    terms = Terms(tokens=1_000, rules=rules)
    verdicts = [await bench.ask(40, terms) for _ in range(3)]
    assert [v.shadows for v in verdicts[:2]] == [0, 0b11]
    assert verdicts[2].refusal is not None


async def test_settling_gives_back_to_it_what_it_gave(bench: Bench) -> None:
    terms = Terms(tokens=1_000, rules=(QuotaRule(concurrent_requests=1, is_shadow=True),))
    first, second = (bench.reservation(10, terms) for _ in range(2))
    assert (await bench.limiter.reserve(first)).shadows == 0
    assert (await bench.limiter.reserve(second)).shadows == 1
    await bench.settle(second, 10)
    await bench.settle(first, 10)
    assert (await bench.ask(10, terms)).shadows == 0


async def test_the_metrics_and_the_log_tell_of_it(
    make_tenant: Callable[..., Tenant], gateway: Gateway
) -> None:
    rules = (QuotaRule(requests_per_minute=1, model="model-a", is_shadow=True),)
    tenant = make_tenant(rules=rules)
    await tenant.accepted()
    before = await num_other_refusals(gateway)
    for _ in range(2):
        assert (await tenant.chat(chat())).status == 200
    assert await num_other_refusals(gateway) == before + 1  # nobody asked to tell it apart
    mine = f'"tenant_id":"{tenant.name}"'
    await until(
        lambda: any(
            mine in line and '"num_shadows":1}' in line
            for line in gateway.log_path.read_text().splitlines()
        )
    )


async def num_other_refusals(gateway: Gateway) -> int:
    lines = (await get(gateway.port, "/metrics")).body.decode().splitlines()
    name = 'pandal_gateway_shadow_refusals_total{rule="other"} '
    (found,) = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return int(found)


def test_only_rules_of_tenants_that_were_named_are_told_apart() -> None:
    metrics = ShadowMetrics(("acme",))
    for number in range(150):
        metrics.count("acme", QuotaRule(model=f'a "rule"\n{number}', is_shadow=True))
    metrics.count("other", QuotaRule(is_shadow=True))
    lines = list(metrics.lines())
    assert len(lines) == 1 + 100 + 1
    rule = 'model a \\"rule\\"\\n0'
    assert f'pandal_gateway_shadow_refusals_total{{tenant="acme",rule="{rule}"}} 1' in lines
    assert 'pandal_gateway_shadow_refusals_total{rule="other"} 51' in lines


def test_a_rule_that_is_gone_leaves_room_for_another() -> None:
    metrics = ShadowMetrics(("acme",))
    gone, there = (QuotaRule(model=name, is_shadow=True) for name in ("gone", "there"))
    metrics.count("acme", gone)
    metrics.count("acme", there)
    metrics.keep_only(snapshot_with(there))
    assert [line for line in metrics.lines() if "acme" in line] == [
        'pandal_gateway_shadow_refusals_total{tenant="acme",rule="model there"} 1'
    ]


def snapshot_with(*rules: QuotaRule) -> PolicySnapshot:
    key = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk")
    tenant = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", keys=(key,), rules=rules)
    document = PolicyDocument(version=1, tenants=(tenant,))
    return snapshot_of(document, bytes(16), datetime.now(UTC))
