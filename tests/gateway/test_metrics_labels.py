"""However many tenants, keys and models ask: so many time series and no more."""

from collections.abc import Callable

from contracts.usage import UsageSource
from gateway.api.context import Operation
from gateway.metering import Usage
from gateway.metrics import Metrics, QuotaStanding
from gateway.request_kinds import RequestKinds, by_kind
from gateway.token_counts import TokenCounts
from gateway.trace import Trace
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream


def rendered(metrics: Metrics) -> list[str]:
    text = metrics.render(num_spooled=0, num_waiting=0, quota=QuotaStanding(0, 0, is_lost=False))
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_only_tenants_that_were_named_have_series() -> None:
    metrics = Metrics(("acme", "other"))
    assert metrics.tenants is not None
    tokens = TokenCounts(1, 2, 3)
    for number in range(1_000):
        metrics.tenants.count(f"tenant-{number}", 200, 1, tokens)
    metrics.tenants.count("acme", 200, 1, tokens)
    metrics.tenants.count("acme", 429, 1, TokenCounts())
    found = [line for line in rendered(metrics) if "tenant" in line]
    assert found == [
        'pandal_gateway_tenant_requests_total{tenant="acme",status="2xx"} 1',
        'pandal_gateway_tenant_requests_total{tenant="acme",status="4xx"} 1',
        'pandal_gateway_tenant_tokens_total{tenant="acme",class="cached"} 2',
        'pandal_gateway_tenant_tokens_total{tenant="acme",class="input"} 1',
        'pandal_gateway_tenant_tokens_total{tenant="acme",class="output"} 3',
    ]


def test_answers_whose_provider_reported_too_much_are_counted() -> None:
    metrics, traces = Metrics(), [Trace(str(n), Operation.COMPLETIONS, 0.0) for n in range(4)]
    for trace, source in zip(traces, UsageSource, strict=True):
        trace.meter.provider, trace.usage = "openai", Usage(3, 2, 3, source)
    metrics.count(by_kind(traces, RequestKinds().of(traces)))
    assert "pandal_gateway_provider_overcounts_total 1" in rendered(metrics)


async def test_what_was_answered_before_is_counted(
    make_tenant: Callable[..., Tenant], gateway: Gateway, upstream: Upstream
) -> None:
    tenant = make_tenant()
    await tenant.accepted()

    async def count() -> int:
        lines = (await get(gateway.port, "/metrics")).body.decode().splitlines()
        name = 'pandal_gateway_known_answers_total{how="replayed"} '
        over_budget = 'pandal_gateway_retries_total{outcome="over_budget"} '
        assert any(line.startswith(over_budget) for line in lines)
        return next(int(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = await count()
    for _ in range(3):
        await tenant.chat(chat(), idempotency_key="k")
    assert await count() == before + 2


async def test_what_clients_send_adds_no_series(
    make_tenant: Callable[..., Tenant], gateway: Gateway
) -> None:
    """Tenants, keys, models and paths of their own making."""
    tenants = [make_tenant() for _ in range(3)]
    await tenants[-1].accepted()

    async def names() -> set[str]:
        lines = (await get(gateway.port, "/metrics")).body.decode().splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    async def ask(suffix: str) -> None:
        for tenant in tenants:
            await tenant.chat(chat())
            await tenant.chat(chat(model=f"model-{suffix}"))
            await get(gateway.port, f"/v1/models/{suffix}", tenant.key)
            await get(gateway.port, f"/{suffix}", tenant.key)

    await ask("one")
    before = await names()
    await ask("two")
    assert await names() == before
    assert not any(tenant.name in name for tenant in tenants for name in before)
