"""Who gets in, and what the others are told."""

import asyncio
import time
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
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.errors import InvalidApiKey, PolicyUnavailable, TooManyAttempts
from gateway.policies import LivePolicies
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, post
from tests.gateway.processes import Gateway, Policies
from tests.support.waiting import PATIENCE_S, eventually

PEPPER = b"sixteen bytes ok"


def policy_of(*keys: str) -> bytes:
    records = tuple(
        ApiKeyRecord(key_id=f"id-{k}", key_hash=hash_api_key(k.encode(), PEPPER), key_prefix="sk")
        for k in keys
    )
    tenant = TenantPolicy(tenant_id="acme", tier="free", keys=records)
    return encode_policy_document(PolicyDocument(version=len(keys), tenants=(tenant,)))


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
    async with asyncio.timeout(PATIENCE_S):
        while (await get(revoked.gateway.port, "/v1/models", revoked.key)).status != 401:
            pass
    assert (await revoked.chat(chat())).status == 401
    assert (await tenant.chat(chat())).status == 200


async def test_a_gateway_without_a_policy_waits_and_says_for_which_file(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    path = tmp_path / "later.json"
    gateway = start_gateway(policy_file=path)
    (told,) = (line for line in gateway.log_lines() if "policy" in str(line["message"]))
    assert told["message"] == "not ready: waiting for a good policy"
    assert told["path"] == str(path)
    assert (await get(gateway.port, "/ready")).document["reasons"][0] == "no policy is loaded"
    path.write_bytes(policy_of("sk-1"))

    def is_loaded() -> bool:
        return any(line["message"] == "policy loaded" for line in gateway.log_lines())

    await asyncio.to_thread(eventually, is_loaded, "the policy")


async def test_a_broken_policy_file_keeps_the_last_good_one(
    tenant: Tenant, policies: Policies
) -> None:
    def refusals() -> int:
        lines = tenant.gateway.log_lines()
        return sum(line["message"].startswith("policy refused") for line in lines)

    before = refusals()
    good = policies.path.read_bytes()
    policies.path.write_bytes(good[:-20])
    eventually(lambda: refusals() > before, "the gateway to see the broken file")
    assert (await tenant.chat(chat())).status == 200
    policies.path.write_bytes(good)


def live(*keys: str) -> LivePolicies:
    policies = LivePolicies("here", PEPPER, time.time)
    if keys:
        policies.adopt(policy_of(*keys))
    return policies


def test_without_any_policy_nobody_can_be_judged() -> None:
    with pytest.raises(PolicyUnavailable):
        Authenticator(live(), PEPPER, SYSTEM_CLOCK).authenticate(b"Bearer sk-1")


def test_the_cache_forgets_with_the_policy() -> None:
    policies = live("sk-1", "sk-2")
    authenticator = Authenticator(policies, PEPPER, SYSTEM_CLOCK)
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    policies.adopt(policy_of("sk-2"))
    with pytest.raises(InvalidApiKey):
        authenticator.authenticate(b"Bearer sk-1")


def test_whoever_only_asks_whether_a_key_is_good_does_not_use_it() -> None:
    authenticator = Authenticator(live("sk-1"), PEPPER, Clock(lambda: 7.0, lambda: 0.0))
    assert authenticator.recognize(b"Bearer sk-1").key.key_id == "id-sk-1"
    assert authenticator.turn() == {}
    authenticator.recognize(b"Bearer sk-1")
    authenticator.authenticate(b"Bearer sk-1")
    assert authenticator.turn() == {"id-sk-1": 7.0}
    with pytest.raises(InvalidApiKey):
        authenticator.recognize(b"Bearer sk-guess")


def test_a_key_that_is_used_on_and_on_is_noted_in_every_turn() -> None:
    authenticator = Authenticator(live("sk-1", "sk-2"), PEPPER, Clock(lambda: 7.0, lambda: 0.0))
    for _ in range(3):
        authenticator.authenticate(b"Bearer sk-1")
        authenticator.authenticate(b"Bearer sk-1")
        assert authenticator.turn() == {"id-sk-1": 7.0}
    assert authenticator.turn() == {}


def test_who_guesses_waits_and_who_is_known_does_not() -> None:
    now_s = 0.0
    authenticator = Authenticator(live("sk-1", "sk-2"), PEPPER, Clock(time.time, lambda: now_s))

    def ask(key: str, peer: str = "10.0.0.1") -> str:
        return authenticator.authenticate(f"Bearer {key}".encode(), lambda: peer).key.key_id

    assert ask("sk-1") == "id-sk-1"
    for number in range(300):
        with pytest.raises(InvalidApiKey):
            ask(f"sk-guess-{number}")
    with pytest.raises(TooManyAttempts) as raised:
        ask("sk-guess")
    assert raised.value.retry_after_ms == 100
    with pytest.raises(TooManyAttempts):
        ask("sk-2")  # a good one cannot be told from a guess
    assert ask("sk-1") == "id-sk-1"
    assert ask("sk-2", peer="10.0.0.2") == "id-sk-2"
    now_s = 0.1
    with pytest.raises(InvalidApiKey):
        ask("sk-guess")


def test_who_is_known_does_not_wait_for_a_guesser_when_the_policy_changes() -> None:
    policies = live("sk-1", "sk-2")
    now_s = 0.0
    authenticator = Authenticator(policies, PEPPER, Clock(time.time, lambda: now_s))
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    for number in range(300):
        with pytest.raises(InvalidApiKey):
            authenticator.authenticate(b"Bearer sk-guess-%d" % number)
    policies.adopt(policy_of("sk-2", "sk-1"))
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    authenticator.turn()
    authenticator.turn()  # also after a pause
    assert authenticator.authenticate(b"Bearer sk-1").key.key_id == "id-sk-1"
    policies.adopt(policy_of("sk-2"))
    with pytest.raises(TooManyAttempts):
        authenticator.authenticate(b"Bearer sk-1")  # revoked: as good as a guess
