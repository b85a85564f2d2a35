"""Who gets in, and what the others are told."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    encode_policy_document,
    hash_api_key,
)
from gateway.auth import Authenticator
from gateway.errors import InvalidApiKey, PolicyUnavailable
from gateway.policies import PolicyStore
from tests.gateway.conftest import Tenant
from tests.gateway.hanging_file import replace_by_pipe, wait_for_reader
from tests.gateway.http_client import chat, get, post
from tests.gateway.processes import Gateway, Policies
from tests.support.waiting import eventually

PEPPER = b"sixteen bytes ok"


def write_policy(path: Path, *keys: str) -> None:
    records = tuple(
        ApiKeyRecord(key_id=f"id-{k}", key_hash=hash_api_key(k.encode(), PEPPER), key_prefix="sk")
        for k in keys
    )
    tenant = TenantPolicy(tenant_id="acme", tier="free", keys=records)
    path.write_bytes(encode_policy_document(PolicyDocument(version=len(keys), tenants=(tenant,))))


@pytest.mark.parametrize("key", [None, "sk-nobody"], ids=["missing", "unknown"])
async def test_a_bad_key_gets_401_without_an_echo(tenant: Tenant, key: str | None) -> None:
    reply = await post(tenant.gateway.port, chat(), key)
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert b"sk-nobody" not in reply.body
    assert tenant.events() == []


async def test_only_the_bearer_scheme_counts(tenant: Tenant) -> None:
    reply = await post(
        tenant.gateway.port, chat(), None, authorization=f"Basic {tenant.key}", x_api_key=tenant.key
    )
    assert reply.status == 401


async def test_the_scheme_may_be_written_in_lower_case(tenant: Tenant) -> None:
    reply = await post(tenant.gateway.port, chat(), None, authorization=f"bearer {tenant.key}")
    assert reply.status == 200


async def test_a_revoked_key_is_refused(
    make_tenant: Callable[..., Tenant], policies: Policies, tenant: Tenant
) -> None:
    revoked = make_tenant()
    await revoked.accepted()
    policies.remove(revoked.name)
    for _ in range(500):
        if (await get(revoked.gateway.port, "/v1/models", revoked.key)).status == 401:
            break
    assert (await revoked.chat(chat())).status == 401
    assert (await tenant.chat(chat())).status == 200


async def test_a_gateway_without_a_policy_waits_and_says_for_which_file(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    path = tmp_path / "later.json"
    gateway = start_gateway(policy_file=path)
    (told,) = (line for line in gateway.log_lines() if "policy" in str(line["message"]))
    assert told["message"] == "not ready: waiting for a good policy file"
    assert told["path"] == str(path)
    assert (await get(gateway.port, "/ready")).document["reasons"][0] == "no policy is loaded"
    write_policy(path, "sk-1")
    await asyncio.to_thread(
        eventually, lambda: gateway.log_lines()[-1]["message"] == "policy loaded", "the policy"
    )


async def test_a_broken_policy_file_keeps_the_last_good_one(
    tenant: Tenant, policies: Policies
) -> None:
    def refusals() -> int:
        lines = tenant.gateway.log_lines()
        return sum(line["message"].startswith("policy file refused") for line in lines)

    before = refusals()
    good = policies.path.read_bytes()
    policies.path.write_bytes(good[:-20])
    eventually(lambda: refusals() > before, "the gateway to see the broken file")
    assert (await tenant.chat(chat())).status == 200
    policies.path.write_bytes(good)


def test_without_any_policy_nobody_can_be_judged(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path / "missing.json", PEPPER)
    store.refresh()
    with pytest.raises(PolicyUnavailable):
        Authenticator(store, PEPPER).authenticate(b"Bearer sk-1")


def test_the_cache_forgets_with_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policy(path, "sk-1", "sk-2")
    store = PolicyStore(path, PEPPER)
    store.refresh()
    authenticator = Authenticator(store, PEPPER)
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    write_policy(path, "sk-2")
    store.refresh()
    with pytest.raises(InvalidApiKey):
        authenticator.authenticate(b"Bearer sk-1")


def test_a_file_replaced_by_one_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    path, other = tmp_path / "policy.json", tmp_path / "other.json"
    write_policy(path, "sk-1")
    store = PolicyStore(path, PEPPER)
    store.refresh()
    write_policy(other, "sk-2")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    store.refresh()
    assert Authenticator(store, PEPPER).authenticate(b"Bearer sk-2").key.key_id == "id-sk-2"


async def test_a_file_that_hangs_holds_up_nobody_who_is_known(tmp_path: Path) -> None:
    path, other = tmp_path / "policy.json", tmp_path / "other.json"
    write_policy(path, "sk-1")
    write_policy(other, "sk-2")
    store = PolicyStore(path, PEPPER)
    store.refresh()
    before = store.current
    replace_by_pipe(path)
    watching = asyncio.create_task(store.watch(0.001))
    pipe = await wait_for_reader(path)
    assert store.current is before
    os.write(pipe, other.read_bytes())
    other.replace(path)  # what is read next hangs no more
    os.close(pipe)
    await asyncio.to_thread(eventually, lambda: store.current is not before, "the new policy")
    assert Authenticator(store, PEPPER).authenticate(b"Bearer sk-2").key.key_id == "id-sk-2"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
