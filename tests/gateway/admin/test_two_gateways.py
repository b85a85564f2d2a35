"""An edit is in force on every gateway, without a restart and without a file."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import pytest

from contracts import metrics
from contracts.names import policy_current
from contracts.policy import decode_policy_document, encode_policy_document
from contracts.policy_change import etag_of
from tests.gateway.admin.admin_process import AdminProcess
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway, Valkey
from tests.gateway.upstream_server import Upstream

TENANTS = ("revoked", "limited", "unheard", "kept")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Of policies alone: it goes away, and quotas do not."""
    found = Valkey(tmp_path_factory.mktemp("policy-store"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def admin(store: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    process = AdminProcess(tmp_path_factory.mktemp("admin"), ADMIN_POLICY_URL=store.url)
    tenants = [{"tenant_id": name, "tier": "gold"} for name in TENANTS]
    stored = process.ask("PUT", "/policy", {"tenants": tenants}, headers={"if-match": "*"})
    assert stored.status == 200
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def gateways(
    admin: AdminProcess, store: Valkey, new_gateway: Callable[..., Gateway], tmp_path_factory
) -> Iterator[list[Gateway]]:
    last_good = tmp_path_factory.mktemp("last-good")
    started = [
        new_gateway(
            f"policed-{number}",
            GATEWAY_POLICY_URL=store.url,
            GATEWAY_POLICY_FILE=str(last_good / f"{number}.json"),
        )
        for number in range(2)
    ]
    for gateway in started:
        gateway.start()
    yield started
    for gateway in started:
        assert gateway.stop() == 0


def new_key(admin: AdminProcess, tenant: str) -> tuple[str, str]:
    created = admin.ask("POST", f"/tenants/{tenant}/keys", {}).document
    return created["api_key"], created["key_id"]


async def until_status(gateway: Gateway, key: str, status: int) -> None:
    async with asyncio.timeout(60):
        while (await get(gateway.port, "/v1/models", key)).status != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_told(gateway: Gateway, name: str, value: int) -> None:
    async with asyncio.timeout(60):
        while f"{name} {value}" not in (  # noqa: ASYNC110
            (await get(gateway.port, "/metrics")).body.decode().splitlines()
        ):
            await asyncio.sleep(0.02)


def store_silently(store: Valkey, payload: bytes) -> None:
    """Nobody is told of it: as a notification that was missed."""
    with store.client as client:
        client.hset(policy_current(), mapping={"etag": etag_of(payload), "document": payload})


def stored_document(store: Valkey) -> bytes:
    with store.client as client:
        payload = client.hget(policy_current(), "document")
    assert isinstance(payload, bytes)
    return payload


async def test_a_revoked_key_stops_everywhere(admin: AdminProcess, gateways: list[Gateway]) -> None:
    key, key_id = new_key(admin, "revoked")
    for gateway in gateways:
        await until_status(gateway, key, 200)
    admin.ask("DELETE", f"/tenants/revoked/keys/{key_id}")
    for gateway in gateways:
        await until_status(gateway, key, 401)


async def test_limits_move_with_what_was_used(
    admin: AdminProcess, gateways: list[Gateway], valkey: Valkey, upstream: Upstream
) -> None:
    """Raising frees at once; lowering leaves nothing, and never less than nothing."""
    key, _ = new_key(admin, "limited")
    tenants = [Tenant("limited", key, gateway, valkey) for gateway in gateways]
    for tenant in tenants:
        await tenant.accepted()

    async def left_with(limit: int) -> list[int]:
        document = admin.ask("GET", "/policy").document
        changed = [
            {**t, "requests_per_minute": limit} if t["tenant_id"] == "limited" else t
            for t in document["tenants"]
        ]
        await asyncio.to_thread(
            admin.ask, "PUT", "/policy", {"tenants": changed}, headers={"if-match": "*"}
        )
        return [await left_at(tenant, limit) for tenant in tenants]

    assert all(0 < left < 100 for left in await left_with(100))
    assert await left_with(1) == [0, 0]
    assert [(await tenant.chat(chat())).status for tenant in tenants] == [429, 429]
    assert min(await left_with(1_000)) > 0
    assert [(await tenant.chat(chat())).status for tenant in tenants] == [200, 200]


async def left_at(tenant: Tenant, limit: int) -> int:
    """Once its gateway knows of the limit."""
    async with asyncio.timeout(60):
        while True:
            reply = await tenant.chat(chat())
            if reply.headers["x-ratelimit-limit-requests"] == str(limit):
                return int(reply.headers["x-ratelimit-remaining-requests"])


async def test_a_change_that_no_gateway_was_told_of_is_seen_by_all(
    admin: AdminProcess, gateways: list[Gateway], store: Valkey
) -> None:
    key, _ = new_key(admin, "unheard")
    for gateway in gateways:
        await until_status(gateway, key, 200)
    document = decode_policy_document(stored_document(store))
    tenants = tuple(t for t in document.tenants if t.tenant_id != "unheard")
    store_silently(
        store, encode_policy_document(msgspec.structs.replace(document, tenants=tenants))
    )
    for gateway in gateways:
        await until_status(gateway, key, 401)


async def test_no_gateway_takes_what_is_no_policy_and_each_says_so(
    admin: AdminProcess, gateways: list[Gateway], store: Valkey
) -> None:
    key, _ = new_key(admin, "kept")
    for gateway in gateways:
        await until_status(gateway, key, 200)
    good = stored_document(store)
    store_silently(store, b'{"version": -1}')
    for gateway in gateways:
        await until_told(gateway, metrics.GATEWAY_POLICY_REFUSED, 1)
        assert (await get(gateway.port, "/v1/models", key)).status == 200
    store_silently(store, good)
    for gateway in gateways:
        await until_told(gateway, metrics.GATEWAY_POLICY_REFUSED, 0)


async def test_a_store_that_is_lost_leaves_the_last_good_policy_in_force(
    admin: AdminProcess, gateways: list[Gateway], store: Valkey
) -> None:
    key, key_id = new_key(admin, "kept")
    for gateway in gateways:
        await until_status(gateway, key, 200)
    store.stop()
    for gateway in gateways:
        await until_told(gateway, metrics.GATEWAY_POLICY_LOST, 1)
        assert (await get(gateway.port, "/v1/models", key)).status == 200
    store.start()
    for gateway in gateways:
        await until_told(gateway, metrics.GATEWAY_POLICY_LOST, 0)
    assert admin.ask("DELETE", f"/tenants/kept/keys/{key_id}").status == 200
    for gateway in gateways:
        await until_status(gateway, key, 401)
