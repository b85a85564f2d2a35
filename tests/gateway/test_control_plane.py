"""Models, probes and metrics."""

import asyncio
from collections.abc import Callable

from contracts import metrics as names
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway, Valkey
from tests.gateway.upstream_server import BEGAN_UNIX_S, Upstream
from tests.support.waiting import PATIENCE_S


async def test_models_are_listed_with_their_aliases(tenant: Tenant) -> None:
    reply = await get(tenant.gateway.port, "/v1/models", tenant.key)
    assert [model["id"] for model in reply.document["data"]] == ["default", "model-a"]
    assert {model["created"] for model in reply.document["data"]} == {BEGAN_UNIX_S}


async def test_one_model_is_told_of_and_what_is_not_served_is_told_with_what_is(
    tenant: Tenant,
) -> None:
    reply = await get(tenant.gateway.port, "/v1/models/model-a", tenant.key)
    assert (reply.status, reply.document["id"]) == (200, "model-a")
    assert reply.document["created"] == BEGAN_UNIX_S
    reply = await get(tenant.gateway.port, "/v1/models/other/name", tenant.key)
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert reply.error["message"].endswith("Served now: default, model-a.")
    assert (await get(tenant.gateway.port, "/v1/models/model-a")).status == 401


async def test_models_need_a_key(tenant: Tenant) -> None:
    reply = await get(tenant.gateway.port, "/v1/models")
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


async def test_health_needs_nothing(tenant: Tenant) -> None:
    assert (await get(tenant.gateway.port, "/health")).status == 200


async def test_readiness_names_its_reasons(
    start_gateway: Callable[..., Gateway], upstream: Upstream
) -> None:
    gateway = start_gateway(quota_url="unix:///nowhere/quota.sock", upstreams={})
    reply = await get(gateway.port, "/ready")
    assert reply.status == 503
    assert reply.document == {
        "is_ready": False,
        "reasons": ["no replica is ready", "the quota store is not reachable"],
    }


async def test_readiness_follows_the_replicas(tenant: Tenant, upstream: Upstream) -> None:
    assert (await get(tenant.gateway.port, "/ready")).status == 200
    upstream.is_ready = False
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await get(tenant.gateway.port, "/ready")).status != 503:
            pass
    assert reply.document["reasons"] == ["no replica is ready"]
    upstream.is_ready = True


async def test_metrics_count_what_happened(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    valkey: Valkey,
    upstream: Upstream,
) -> None:
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    await tenant.chat(chat())
    await tenant.chat(b"not json")
    tenant.only_event()
    reply = await get(gateway.port, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    requests = f'{names.GATEWAY_REQUESTS}{{endpoint="chat.completions",status='
    assert f'{requests}"200"}} 1' in lines
    assert f'{requests}"400"}} 1' in lines
    assert f'{names.GATEWAY_REFUSALS}{{reason="invalid_request"}} 1' in lines
    for token_class, count in (("input", 7), ("cached", 4), ("output", 3)):
        assert f'{names.GATEWAY_TOKENS}{{class="{token_class}"}} {count}' in lines
    assert f"{names.GATEWAY_TTFT}_count 1" in lines
    assert f'{names.GATEWAY_TTFT}_bucket{{le="+Inf"}} 1' in lines
    assert f"{names.GATEWAY_ACTIVE_REQUESTS} 0" in lines
    assert f"{names.GATEWAY_SPOOLED_EVENTS} 1" in lines
