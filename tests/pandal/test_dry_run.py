"""``pandal policy dry-run``: a record of a real store, replayed on one of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from gateway.resp_address import RespAddress
from pandal.dry_run import Hindsight, dry_run, told
from pandal.errors import Unreachable
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import Terms, reservation_of, running_limiter

KEY = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk")
ACME = TenantPolicy(
    tenant_id=tenant_id("acme"),
    tier="gold",
    tokens_per_minute=100,
    requests_per_minute=1_000,
    keys=(KEY,),
)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    found = Valkey(tmp_path)
    found.start()
    yield found
    found.stop()


def document(tokens_per_minute: int) -> PolicyDocument:
    changed = msgspec.structs.replace(ACME, tokens_per_minute=tokens_per_minute)
    return PolicyDocument(version=1, tenants=(changed,))


async def ask(valkey: Valkey) -> None:
    """Three times 40 tokens: the third is refused."""
    terms = Terms(tokens=100, requests=1_000)
    async with running_limiter(valkey.url) as limiter:
        for _ in range(3):
            await limiter.reserve(reservation_of("acme", 40, terms))


def test_who_would_have_been_refused_and_who_served(valkey: Valkey) -> None:
    asyncio.run(ask(valkey))
    before = valkey.num_open_reservations("acme")

    def run(tokens_per_minute: int, since_s: float = 0.0) -> list[Hindsight]:
        proposed = document(tokens_per_minute)
        names = [tenant_id("acme"), tenant_id("silent")]
        address = RespAddress.parse(valkey.url)
        return asyncio.run(dry_run(address, document(100), proposed, names, since_s))

    (same,) = run(100)
    assert (same.num_asks, same.num_refused, same.num_reproduced) == (3, 1, 3)
    assert same.first_at <= same.last_at
    assert f"3 asks from {same.first_at:%H:%M:%S} to {same.last_at:%H:%M:%S}" in next(told([same]))
    assert (same.num_refused_then, same.newly_refused, same.newly_served) == (1, 0, 0)
    (tighter,) = run(50)
    assert (tighter.newly_refused, tighter.newly_refused_by) == (1, ("tokens per minute",))
    assert "1 more refused" in "\n".join(told([tighter]))
    assert "now 1 refused, proposed" in "\n".join(told([tighter]))
    (wider,) = run(1_000)
    assert (wider.newly_served, wider.newly_served_tokens) == (1, 40)
    assert run(1_000, since_s=4e9) == []
    assert valkey.num_open_reservations("acme") == before


def test_a_store_that_does_not_let_us_in_is_told_by_its_word(valkey: Valkey) -> None:
    with valkey.client as client:
        client.config_set("requirepass", "open sesame")
    address, names = RespAddress.parse(valkey.url), [tenant_id("acme")]
    with pytest.raises(Unreachable, match="NOAUTH"):
        asyncio.run(dry_run(address, document(100), document(50), names, 0.0))
