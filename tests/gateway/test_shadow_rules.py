"""A rule on trial counts what it would refuse, and refuses nothing."""

from collections.abc import AsyncIterator, Callable

import pytest

from contracts.quota import QuotaRule
from gateway.metrics import Metrics, QuotaStanding
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import Bench, Terms, running_limiter

SHADOW = QuotaRule(tokens_per_minute=100, is_shadow=True)


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


async def test_it_counts_and_refuses_nothing(bench: Bench) -> None:
    terms = Terms(tokens=1_000, rules=(SHADOW,))
    verdicts = [await bench.ask(60, terms) for _ in range(3)]
    assert [v.refusal for v in verdicts] == [None, None, None]
    assert [v.shadows for v in verdicts] == [0, 1, 1]
    assert bench.level() == pytest.approx(1_000 - 180, abs=10)


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


async def test_the_metrics_tell_the_rule(make_tenant: Callable[..., Tenant]) -> None:
    rules = (QuotaRule(requests_per_minute=1, model="model-a", is_shadow=True),)
    tenant = make_tenant(rules=rules)
    await tenant.accepted()
    for _ in range(2):
        assert (await tenant.chat(chat())).status == 200
    told = (await get(tenant.gateway.port, "/metrics")).body.decode()
    name = f'pandal_gateway_shadow_refusals_total{{rule="{tenant.name}, model model-a"}} 1'
    assert name in told.splitlines()


def test_the_metrics_tell_apart_so_many_rules_and_no_more() -> None:
    metrics = Metrics()
    for number in range(150):
        metrics.count_shadow_refusal(f'a "rule"\n{number}')
    told = metrics.render(num_spooled=0, num_waiting=0, quota=QuotaStanding(0, 0, is_lost=False))
    lines = [line for line in told.splitlines() if "shadow_refusals_total{" in line]
    assert len(lines) == 101
    assert 'pandal_gateway_shadow_refusals_total{rule="other"} 50' in lines
