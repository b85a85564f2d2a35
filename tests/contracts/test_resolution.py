"""Whose word counts, and that what is explained is what applies."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.admission import AdmissionPolicy, ServiceClass
from contracts.names import tenant_id
from contracts.policy import (
    TIERS,
    ApiKeyRecord,
    OrganisationPolicy,
    PolicyDocument,
    TenantPolicy,
    Tier,
)
from contracts.policy_reasons import Reason, reasons
from contracts.quota import QuotaRule
from contracts.resolution import View, rules_of, statements_about, view_of
from contracts.terms import Terms
from contracts.windows import TimeWindow

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
DAY = TimeWindow(opens="08:00", closes="18:00")
K1 = ApiKeyRecord(key_id="k1", key_hash="h1", key_prefix="sk", models=("a", "b"))
K2 = ApiKeyRecord(key_id="k2", key_hash="h2", key_prefix="sk")
ACME = TenantPolicy(
    tenant_id=tenant_id("acme"),
    tier="gold",
    organisation="group",
    keys=(K1, K2),
    rules=(
        QuotaRule(key_id="k1", tokens_per_minute=20_000),
        QuotaRule(window=DAY, tokens_per_minute=500_000),
        QuotaRule(model="a", concurrent_requests=9),
        QuotaRule(tokens_per_day=77, is_shadow=True),
    ),
    terms=(
        Terms(weight=3, allowed_models=("b", "c")),
        Terms(model="b", weight=5),
        Terms(key_id="k1", max_prompt_tokens=900),
        Terms(key_id="k2", max_prompt_tokens=10**9),
    ),
)
GROUP = OrganisationPolicy(
    organisation_id="group",
    rules=(QuotaRule(model="a", concurrent_requests=4), QuotaRule(tokens_per_month=1_000)),
    terms=(Terms(max_completion_tokens=100, weight=2),),
)
DOCUMENT = PolicyDocument(version=1, organisations=(GROUP,), tenants=(ACME,))


def view(key: ApiKeyRecord | None = None, model: str | None = None, at: datetime = NOON) -> View:
    return view_of(statements_about(DOCUMENT, ACME, key=key, model=model, at=at))


def explained(
    key: ApiKeyRecord | None, model: str | None, at: datetime = NOON
) -> dict[str, Reason]:
    return {r.field: r for r in reasons(DOCUMENT, ACME, key=key, model=model, at=at)}


def test_the_nearest_word_counts() -> None:
    assert view().admission.weight == 3
    assert view(model="b").admission.weight == 5
    assert view().admission.service_class is ServiceClass.INTERACTIVE


def test_a_limit_is_only_narrowed_below_the_tenant() -> None:
    gold = TIERS["gold"]
    assert view(K1).admission.max_prompt_tokens == 900
    assert view(K2).admission.max_prompt_tokens == 131_072
    assert view().limits.max_completion_tokens == 100 < gold.max_completion_tokens
    assert view().limits.default_completion_tokens == 100


def test_models_are_allowed_by_all_levels() -> None:
    assert view(K1).allowed_models == {"b"}
    assert view(K2).allowed_models == {"b", "c"}


def test_a_window_goes_before_what_always_holds() -> None:
    assert view(at=NOON).limits.tokens_per_minute == 500_000
    assert view(at=MIDNIGHT).limits.tokens_per_minute == 600_000


def test_an_organisation_tightens_its_tenants_rules() -> None:
    found = {rule.selector: rule for rule in rules_of(DOCUMENT, ACME, MIDNIGHT)}
    assert found[None, "a", False].concurrent_requests == 4
    assert found[None, None, False].tokens_per_month == 1_000
    assert found[None, None, True].tokens_per_day == 77
    assert found["k1", None, False].tokens_per_minute == 20_000


def test_an_operators_own_tier_stands_in_place_of_a_built_in_one() -> None:
    own = Tier(name="gold", limits=TIERS["free"], admission=AdmissionPolicy(weight=7))
    document = PolicyDocument(version=1, tiers=(own,), tenants=(ACME,))
    said = statements_about(document, ACME, key=None, model=None, at=MIDNIGHT)
    assert view_of(said).limits == TIERS["free"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tokens_per_minute", "20,000 TPM because tier gold, narrowed by key k1"),
        ("requests_per_minute", "3,000 RPM because tier gold"),
        (
            "concurrent_requests",
            "4 concurrent requests because tenant acme and organisation group, model a",
        ),
        ("tokens_per_month", "1,000 tokens a month because organisation group, tenant acme"),
        ("weight", "weight 3 because tenant acme"),
        (
            "max_completion_tokens",
            "max completion tokens 100 because tier gold, narrowed by organisation group",
        ),
        ("allowed_models", "allowed models b because tenant acme, narrowed by key k1"),
        ("ttft_target_ms", "ttft target ms none because tier gold"),
    ],
)
def test_a_reason_reads_like_a_sentence(field: str, words: str) -> None:
    assert explained(K1, "a", MIDNIGHT)[field].words == words


def test_golden_bytes() -> None:
    reason = explained(K1, None, MIDNIGHT)["weight"]
    assert msgspec.json.encode(reason) == (
        b'{"type":"policy.reason.v1","field":"weight","value":3,"because":"tenant acme"}'
    )


def test_a_shadow_rule_narrows_nothing() -> None:
    told = [r.words for r in reasons(DOCUMENT, ACME, key=K1, model=None, at=NOON)]
    assert "77 tokens a day because tenant acme, in shadow: refuses nothing" in told


NAMED = msgspec.structs.replace(
    ACME,
    organisation=None,
    rules=(QuotaRule(model="law", requests_per_minute=3),),
    terms=(
        Terms(model="law", max_completion_tokens=5, weight=7),
        Terms(key_id="k2", model="big:law", weight=9, window=DAY),
    ),
)


@pytest.mark.parametrize(
    ("model", "requests_per_minute", "max_completion_tokens", "weight"),
    [
        ("law", 3, 5, 7),
        ("smol:law", 3, 5, 7),
        ("big:law", 3, 8_192, 8),  # whom terms name as it goes, those of its own name do not
        ("lawyer", 3_000, 8_192, 8),
        (None, 3_000, 8_192, 8),
    ],
)
def test_what_holds_for_an_adapters_own_name_is_told_of_its_long_one(
    model: str | None, requests_per_minute: int, max_completion_tokens: int, weight: int
) -> None:
    document = PolicyDocument(version=1, tenants=(NAMED,))
    told = {r.field: r.value for r in reasons(document, NAMED, key=K1, model=model, at=NOON)}
    assert told["requests_per_minute"] == requests_per_minute
    assert told["max_completion_tokens"] == max_completion_tokens
    assert told["weight"] == weight


@given(
    model=st.sampled_from([None, "a", "b"]),
    key=st.sampled_from([None, K1, K2]),
    at=st.datetimes(timezones=st.just(UTC), min_value=datetime(2026, 1, 1)),  # noqa: DTZ001
)
def test_what_is_explained_applies(
    model: str | None, key: ApiKeyRecord | None, at: datetime
) -> None:
    found, told = view(key, model, at), explained(key, model, at)
    for name in AdmissionPolicy.__struct_fields__:
        value = getattr(found.admission, name)
        assert told[name].value == (list(value) if isinstance(value, tuple) else value)
    assert told["max_completion_tokens"].value == found.limits.max_completion_tokens
    least = [found.limits.tokens_per_minute]
    least += [
        rule.tokens_per_minute
        for rule in rules_of(DOCUMENT, ACME, at)
        if rule.tokens_per_minute is not None
        and rule.matches("" if key is None else key.key_id, "" if model is None else model)
    ]
    assert told["tokens_per_minute"].value == min(least)
