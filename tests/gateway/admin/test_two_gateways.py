"""An edit is in force on every gateway, without a restart and without a file."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from contracts.names import policy_changes, policy_current, policy_versions
from tests.gateway.admin.admin_process import AdminProcess
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway, Valkey


@pytest.fixture(scope="module")
def admin(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    with valkey.client as client:
        client.delete(policy_current(), policy_versions(), policy_changes())
    process = AdminProcess(tmp_path_factory.mktemp("admin"), ADMIN_POLICY_URL=valkey.url)
    tenants = [{"tenant_id": name, "tier": "gold"} for name in ("revoked", "limited")]
    stored = process.ask("PUT", "/policy", {"tenants": tenants}, headers={"if-match": "*"})
    assert stored.status == 200
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def gateways(
    admin: AdminProcess, valkey: Valkey, new_gateway: Callable[..., Gateway], tmp_path_factory
) -> Iterator[list[Gateway]]:
    last_good = tmp_path_factory.mktemp("last-good")
    started = [
        new_gateway(
            f"policed-{number}",
            GATEWAY_POLICY_URL=valkey.url,
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


async def test_a_revoked_key_stops_everywhere(admin: AdminProcess, gateways: list[Gateway]) -> None:
    key, key_id = new_key(admin, "revoked")
    for gateway in gateways:
        await until_status(gateway, key, 200)
    admin.ask("DELETE", f"/tenants/revoked/keys/{key_id}")
    for gateway in gateways:
        await until_status(gateway, key, 401)


async def test_limits_move_with_what_was_used(
    admin: AdminProcess, gateways: list[Gateway], valkey: Valkey
) -> None:
    """Raising frees at once; lowering leaves nothing, and never less than nothing."""
    key, _ = new_key(admin, "limited")
    tenant = Tenant("limited", key, gateways[0], valkey)
    await until_status(gateways[0], key, 200)

    async def left_with(limit: int) -> int:
        document = admin.ask("GET", "/policy").document
        changed = [
            {**t, "requests_per_minute": limit} if t["tenant_id"] == "limited" else t
            for t in document["tenants"]
        ]
        await asyncio.to_thread(
            admin.ask, "PUT", "/policy", {"tenants": changed}, headers={"if-match": "*"}
        )
        async with asyncio.timeout(60):
            while True:
                reply = await tenant.chat(chat())
                if reply.headers["x-ratelimit-limit-requests"] == str(limit):
                    return int(reply.headers["x-ratelimit-remaining-requests"])

    assert 0 < await left_with(100) < 100
    assert await left_with(1) == 0
    assert (await tenant.chat(chat())).status == 429
    assert await left_with(1_000) > 0
    assert (await tenant.chat(chat())).status == 200
