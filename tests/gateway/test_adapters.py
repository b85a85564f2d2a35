"""A replica's adapters are models of their own, and events say which those were."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import pytest

from contracts.quota import ModelPrice, QuotaRule
from contracts.response_cache import CachePolicy
from contracts.usage import UsageEvent
from gateway.routing.adapter_names import adapter_names
from tests.gateway.balancer import num_of
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import Reply, chat, get
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
async def tenant(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> Tenant:
    upstream.adapters = ("law", "org/poetry")
    tenant = make_tenant(start_gateway())
    await tenant.accepted()
    return tenant


async def served(tenant: Tenant, upstream: Upstream, model: str) -> tuple[str, UsageEvent]:
    """What the replica was asked for, and the event."""
    before = len(tenant.events())
    reply = await tenant.chat(chat() | {"model": model})
    assert reply.status == 200
    *_, event = tenant.events()
    assert len(tenant.events()) == before + 1
    return upstream.generations[-1].received.document["model"], event


async def test_events_tell_adapters_from_models(tenant: Tenant, upstream: Upstream) -> None:
    listed = await get(tenant.gateway.port, "/v1/models", tenant.key)
    names = [model["id"] for model in listed.document["data"]]
    assert names == ["default", "law", "model-a", "org/poetry"]
    parents = [model["parent"] for model in listed.document["data"]]
    assert parents == [None, "model-a", None, "model-a"]
    for asked, model, adapter in (
        ("model-a", "model-a", None),
        ("law", "law", "law"),
        ("model-a:law", "law", "law"),
        ("model-a:org/poetry", "org/poetry", "org/poetry"),
        ("model-a", "model-a", None),
    ):
        sent, event = await served(tenant, upstream, asked)
        assert sent == model
        assert (event.model_requested, event.model, event.adapter) == (asked, model, adapter)
        assert event.adapter_of == (None if adapter is None else "model-a")


async def test_a_budget_in_money_counts_an_adapter_as_it_is_billed(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
    policies: Policies,
) -> None:
    """By its own price, or by that of what it adapts: it is never turned away for having none."""
    upstream.adapters = ("law", "org/poetry")
    price = ModelPrice(model="model-a", input_uncached=1, input_cache_read=1, output_text=1)
    policies.price(price)
    try:
        budget = QuotaRule(nano_usd_per_month=10**12)
        tenant = make_tenant(start_gateway(), rules=(budget,))
        await tenant.accepted()
        assert (await tenant.chat(chat() | {"model": "law"})).status == 200
        policies.price(msgspec.structs.replace(price, model="model-b"))
        reply = await tenant.chat(chat() | {"model": "law"})
        async with asyncio.timeout(PATIENCE_S):
            while reply.status == 200:  # until the gateway has read that
                reply = await tenant.chat(chat() | {"model": "law"})
        assert reply.error["code"] == "model_not_priced"
    finally:
        policies.price()


@pytest.mark.parametrize("model", ["law:model-a", "model-a:", "model-a:prose", "default:law"])
async def test_no_other_name_is_one(tenant: Tenant, model: str) -> None:
    reply = await tenant.chat(chat() | {"model": model})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def before_both(
    start_gateway: Callable[..., Gateway], pools: dict[str, Upstream], **settings: str
) -> Gateway:
    """Once it knows both: a name is another's only then."""
    gateway = start_gateway(upstreams=pools, **settings)
    eventually(lambda: num_of(gateway, "replica ready") == 2, "both replicas")
    return gateway


@pytest.fixture
def two_pools(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> Iterator[tuple[Callable[[], Tenant], Upstream]]:
    """A tenant of a gateway before replicas of two models, and the second of those."""
    other = Upstream(model="model-b")
    other.start()

    def begun() -> Tenant:
        return make_tenant(before_both(start_gateway, {"a": upstream, "b": other}))

    yield begun, other
    other.stop()


async def answered(tenant: Tenant, model: str, status: int) -> Reply:
    """Once the gateway has seen what is served now."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await tenant.chat(chat() | {"model": model})
            if reply.status == status:
                return reply
            await asyncio.sleep(0.05)


async def test_of_two_adapters_of_one_name_each_is_its_bases(
    two_pools: tuple[Callable[[], Tenant], Upstream], upstream: Upstream
) -> None:
    begun, other = two_pools
    upstream.adapters = other.adapters = ("law",)
    tenant = begun()
    reply = await answered(tenant, "law", 404)
    assert "'model-a:law' or 'model-b:law'" in reply.error["message"]
    for asked, at in (("model-a:law", upstream), ("model-b:law", other)):
        upstream.generations, other.generations = [], []
        for _ in range(4):
            await answered(tenant, asked, 200)
        assert [g.received.document["model"] for g in at.generations] == ["law"] * 4
        assert upstream.generations == [] or other.generations == []
        event = tenant.events()[-1]
        assert (event.model, event.adapter_of) == (asked, asked.partition(":")[0])


async def test_nobody_is_answered_with_what_another_adapter_said(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
    valkey: Valkey,
    two_pools: tuple[Callable[[], Tenant], Upstream],
) -> None:
    """Of two that replicas call by one name."""
    _, other = two_pools
    upstream.adapters = other.adapters = ("law",)
    pools = {"a": upstream, "b": other}
    gateway = before_both(start_gateway, pools, GATEWAY_CACHE_URL=valkey.url)
    tenant = make_tenant(gateway, cache=CachePolicy())
    await answered(tenant, "law", 404)
    for asked in ("model-a:law", "model-b:law"):
        reply = await tenant.chat(chat(temperature=0) | {"model": asked})
        assert reply.headers["x-pandal-cache"] == "miss"
        assert tenant.events()[-1].model == asked
    assert [len(at.generations) for at in (upstream, other)] == [1, 1]


async def test_the_only_one_of_its_name_needs_no_base(
    two_pools: tuple[Callable[[], Tenant], Upstream], upstream: Upstream
) -> None:
    begun, other = two_pools
    upstream.adapters = ("law",)
    tenant = begun()
    await answered(tenant, "model-b", 200)
    await answered(tenant, "law", 200)
    await answered(tenant, "model-b:law", 404)
    other.adapters = ("law",)
    await answered(tenant, "law", 404)
    upstream.adapters = ()
    await answered(tenant, "law", 200)
    assert other.generations[-1].received.document["model"] == "law"
    await answered(tenant, "model-a:law", 404)


async def test_a_models_name_is_never_that_of_anothers_adapter(
    two_pools: tuple[Callable[[], Tenant], Upstream], upstream: Upstream
) -> None:
    begun, other = two_pools
    other.adapters = ("model-a",)
    tenant = begun()
    await answered(tenant, "model-b:model-a", 200)
    assert other.generations[-1].received.document["model"] == "model-a"
    upstream.generations, other.generations = [], []
    for _ in range(6):
        await answered(tenant, "model-a", 200)
    assert (len(upstream.generations), other.generations) == (6, [])


def test_a_model_called_as_an_adapter_would_have_to_be_keeps_its_name() -> None:
    told = [("a", None), ("b", None), ("law", "a"), ("law", "b"), ("a:law", None)]
    names = adapter_names(told)
    assert names.names["a:law", None] == "a:law"
    assert names.names["law", "a"] is None
    assert names.names["law", "b"] == "b:law"
    assert names.parents == {"b:law": "b"}
