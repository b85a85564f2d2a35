"""Spend counters that were lost stand at the ledger again; others are left alone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from billing.errors import QuotaStoreUnavailable
from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.spend_counters import raise_counters
from contracts.names import quota_budget_key, quota_rule_name, tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.terms import Terms
from contracts.usage import UsageEvent
from tests.billing.usage_events import BOOK, MODEL, NOON, batch_of, usage
from tests.gateway.processes import Valkey
from tests.support.ports import free_port


def post(ledger: Ledger, *events: UsageEvent, first: int | None = None) -> None:
    ledger.post(rate_batch(batch_of(list(events), first=first), BOOK))


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("quota"))
    valkey.start()
    yield valkey
    valkey.stop()


ACME = TenantPolicy(
    tenant_id=tenant_id("acme"),
    tier="standard",
    rules=(
        QuotaRule(nano_usd_per_month=10**9),
        QuotaRule(key_id="key-1", model=MODEL, tokens_per_day=1_000),
        QuotaRule(model="unused", tokens_per_day=1_000),
        QuotaRule(key_id="key-2", requests_per_minute=5),
    ),
)
POLICIES = PolicyDocument(version=1, tenants=(ACME,))
NOVEMBER, TODAY = 2026 * 12 + 10, (NOON.date() - datetime(1970, 1, 1, tzinfo=UTC).date()).days


def test_counters_that_were_lost_stand_at_the_ledger_again_and_none_is_lowered(
    ledger: Ledger, ledger_url: str, quota: Valkey
) -> None:
    yesterday = NOON - timedelta(days=1)
    post(ledger, usage(1), usage(2, key_id="key-2"), usage(3, occurred_at=yesterday))
    with quota.client as store:
        key = quota_budget_key(tenant_id("acme"))
        store.delete(key)
        month = f"m{NOVEMBER}nano"
        named = quota_rule_name("key-1", MODEL)
        store.hset(key, f"d{TODAY}nano", 10**9)  # what runs, and is not in the ledger yet
        assert raise_counters(ledger_url, quota.url, POLICIES, now=NOON) == 7
        assert raise_counters(ledger_url, quota.url, POLICIES, now=NOON) == 0
        found = {name.decode(): int(value) for name, value in store.hgetall(key).items()}
        assert found.pop("ledger") <= store.time()[0]
        assert 0 < store.ttl(key) <= 70 * 86_400
    assert found == {
        f"d{TODAY}nano": 10**9,
        f"d{TODAY}tokens": 214,
        f"m{NOVEMBER}tokens": 321,
        month: -(-3 * 232_200_007 // 1_000),
        f"{named}d{TODAY}tokens": 107,
        f"{named}d{TODAY}nano": -(-232_200_007 // 1_000),
        f"{named}m{NOVEMBER}tokens": 214,
        f"{named}m{NOVEMBER}nano": -(-2 * 232_200_007 // 1_000),
    }


def test_counters_that_were_not_lost_are_left_as_the_gateways_count(
    ledger: Ledger, ledger_url: str, quota: Valkey
) -> None:
    """A request that was admitted yesterday counts then, whenever it is posted."""
    key = quota_budget_key(tenant_id("acme"))
    with quota.client as store:
        store.delete(key)
        store.hset(key, "ledger", store.time()[0] - 3_600)
        post(ledger, usage(1))
        assert raise_counters(ledger_url, quota.url, POLICIES, now=NOON) == 0
        store.delete(key)  # now they were
        assert raise_counters(ledger_url, quota.url, POLICIES, now=NOON) == 8
        post(ledger, usage(2), first=1)  # it ran meanwhile
        assert raise_counters(ledger_url, quota.url, POLICIES, now=NOON) == 8


def test_a_cached_token_counts_as_the_policy_says_after_a_loss_as_before(
    ledger: Ledger, ledger_url: str, quota: Valkey
) -> None:
    forgiving = Terms(key_id="key-1", cached_token_weight=0.25)
    key = ApiKeyRecord(key_id="key-1", key_hash="0" * 64, key_prefix="sk")
    rules = (QuotaRule(tokens_per_day=1_000), QuotaRule(tokens_per_day=500, is_shadow=True))
    policy = msgspec.structs.replace(ACME, rules=rules, terms=(forgiving,), keys=(key,))
    post(ledger, usage(1), usage(2, key_id="key-2"))
    with quota.client as store:
        name = quota_budget_key(tenant_id("acme"))
        store.delete(name)
        raise_counters(
            ledger_url, quota.url, PolicyDocument(version=1, tenants=(policy,)), now=NOON
        )
        found = [store.hget(name, f"{own}d{TODAY}tokens") for own in ("", "~")]
    assert found == [b"%d" % (36 + 16 + 7 + 107)] * 2


def test_what_an_adapters_own_name_makes_count_counts_so_after_a_loss(
    ledger: Ledger, ledger_url: str, quota: Valkey
) -> None:
    """It goes by its base's name and its own, since another bears its own, too."""
    forgiving = Terms(model="law", cached_token_weight=0.25)
    rules = (QuotaRule(model="law", tokens_per_day=1_000),)
    policy = msgspec.structs.replace(ACME, rules=rules, terms=(forgiving,))
    post(ledger, usage(1, model="smol:law"), usage(2, model="law"))
    with quota.client as store:
        name = quota_budget_key(tenant_id("acme"))
        store.delete(name)
        raise_counters(
            ledger_url, quota.url, PolicyDocument(version=1, tenants=(policy,)), now=NOON
        )
        found = store.hget(name, f"{quota_rule_name(None, 'law')}d{TODAY}tokens")
    assert found == b"%d" % (2 * (36 + 16 + 7))


def test_a_store_that_is_away_is_an_error_of_its_own(ledger: Ledger, ledger_url: str) -> None:
    for url in (f"redis://127.0.0.1:{free_port()}", "not a url"):
        with pytest.raises(QuotaStoreUnavailable):
            raise_counters(ledger_url, url, POLICIES, now=NOON)
