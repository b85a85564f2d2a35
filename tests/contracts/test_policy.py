"""Policy documents: golden bytes, inheritance, and faults named by their path."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from contracts.errors import ContractError
from contracts.names import quota_rule_name, tenant_id
from contracts.policy import (
    TIERS,
    ApiKeyRecord,
    OrganisationPolicy,
    PolicyDocument,
    RetiringSecret,
    TenantPolicy,
    Tier,
    decode_policy_document,
    encode_policy_document,
    hash_api_key,
)
from contracts.policy_reasons import reasons
from contracts.policy_text import from_plain
from contracts.quota import ModelPrice, QuotaRule
from contracts.terms import Terms
from contracts.windows import Day, TimeWindow

PEPPER = b"0123456789abcdef"
KEY = ApiKeyRecord(key_id="k1", key_hash="ab", key_prefix="sk-pandal-Xy")
NIGHT = {"opens": "22:00", "closes": "06:00", "days": (Day.FRIDAY,), "zone": "Europe/Berlin"}
RULE = QuotaRule(key_id="k1", concurrent_requests=4, nano_usd_per_month=5 * 10**9)
PRICE = ModelPrice(model="m", input_uncached=20, input_cache_read=5, output_text=60)
ACME = TenantPolicy(
    tenant_id=tenant_id("acme"),
    tier="standard",
    tokens_per_minute=5_000,
    keys=(KEY,),
    rules=(RULE,),
)
DOCUMENT = PolicyDocument(version=3, tenants=(ACME,), prices=(PRICE,))
YESTERDAY = b"""{
  "type": "policy.document.v1",
  "version": 3,
  "tenants": [
    {
      "type": "tenant.policy.v1",
      "tenant_id": "acme",
      "tier": "standard",
      "tokens_per_minute": 5000,
      "requests_per_minute": null,
      "keys": [
        {
          "type": "api_key.v1",
          "key_id": "k1",
          "key_hash": "ab",
          "key_prefix": "sk-pandal-Xy"
        }
      ],
      "rules": [
        {
          "type": "quota.rule.v1",
          "key_id": "k1",
          "model": null,
          "tokens_per_minute": null,
          "requests_per_minute": null,
          "concurrent_requests": 4,
          "tokens_per_day": null,
          "tokens_per_month": null,
          "nano_usd_per_day": null,
          "nano_usd_per_month": 5000000000
        }
      ],
      "admission": null
    }
  ],
  "prices": [
    {
      "type": "model.price.v1",
      "model": "m",
      "input_uncached": 20,
      "input_cache_read": 5,
      "output_text": 60
    }
  ]
}
"""
LIMITS_GOLDEN = (
    b'{"type":"limits.v1","tokens_per_minute":10000,"requests_per_minute":30,'
    b'"default_completion_tokens":256,"max_completion_tokens":1024}'
)
LATER = datetime(2026, 12, 24, 8, tzinfo=UTC)
WHOLE = PolicyDocument(
    version=4,
    tiers=(Tier(name="trial", limits=TIERS["free"]),),
    organisations=(
        OrganisationPolicy(
            organisation_id="acme-group",
            rules=(QuotaRule(tokens_per_minute=9_000),),
            terms=(Terms(model="m", max_prompt_tokens=100, window=TimeWindow(**NIGHT)),),
        ),
    ),
    tenants=(
        msgspec.structs.replace(
            ACME,
            organisation="acme-group",
            tier="trial",
            keys=(
                ApiKeyRecord(
                    key_id="k1",
                    key_hash="ab",
                    key_prefix="sk",
                    expires_at=LATER,
                    models=("m",),
                    retiring=(RetiringSecret(key_hash="cd", key_prefix="sk", expires_at=LATER),),
                ),
            ),
        ),
    ),
)
GOLDEN = (
    b'{"type":"policy.document.v1","version":4,"tiers":[{"type":"tier.v1","name":"trial",'
    b'"limits":' + LIMITS_GOLDEN + b'}],"organisations":[{"type":"organisation.policy.v1",'
    b'"organisation_id":"acme-group","rules":[{"type":"quota.rule.v1","tokens_per_minute":9000}],'
    b'"terms":[{"type":"terms.v1","model":"m","window":{"type":"time.window.v1","opens":"22:00",'
    b'"closes":"06:00","days":["fri"],"zone":"Europe/Berlin"},"max_prompt_tokens":100}]}],'
    b'"tenants":[{"type":"tenant.policy.v1","tenant_id":"acme","tier":"trial",'
    b'"organisation":"acme-group","tokens_per_minute":5000,"keys":[{"type":"api_key.v1",'
    b'"key_id":"k1","key_hash":"ab","key_prefix":"sk","expires_at":"2026-12-24T08:00:00Z",'
    b'"models":["m"],"retiring":[{"type":"api_key.retiring.v1","key_hash":"cd","key_prefix":"sk",'
    b'"expires_at":"2026-12-24T08:00:00Z"}]}],"rules":[{"type":"quota.rule.v1","key_id":"k1",'
    b'"concurrent_requests":4,"nano_usd_per_month":5000000000}]}]}'
)


def test_golden_bytes() -> None:
    assert msgspec.json.format(encode_policy_document(WHOLE), indent=-1) == GOLDEN
    assert decode_policy_document(GOLDEN) == WHOLE
    assert msgspec.json.encode(TIERS["free"]) == LIMITS_GOLDEN


def test_yesterdays_documents_still_load() -> None:
    assert decode_policy_document(YESTERDAY) == DOCUMENT


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        pytest.param(b'"acme"', b'"Acme Inc"', "$.tenants[0].tenant_id", id="tenant-id"),
        pytest.param(b'"standard"', b'"platinum"', "$.tenants[0].tier", id="tier"),
        pytest.param(b": 5000", b": 0", "$.tenants[0].tokens_per_minute", id="zero-limit"),
        pytest.param(
            b": 5000", b": 1000000001", "$.tenants[0].tokens_per_minute", id="limit-out-of-range"
        ),
        pytest.param(b'"version"', b'"x": ' + b"[" * 100_000, "recursion", id="nested"),
        pytest.param(b'"version": 3', b'"version": "3"', "$.version", id="type"),
    ],
)
def test_a_fault_is_named_by_its_path(old: bytes, new: bytes, path: str) -> None:
    with pytest.raises(ContractError, match=r"policy document") as raised:
        decode_policy_document(YESTERDAY.replace(old, new))
    assert path in str(raised.value)


def test_one_tenant_or_key_never_stands_twice() -> None:
    twice = PolicyDocument(version=1, tenants=(ACME, ACME))
    with pytest.raises(ContractError, match="stands twice"):
        decode_policy_document(encode_policy_document(twice))
    other = TenantPolicy(tenant_id=tenant_id("other"), tier="free", keys=(KEY,))
    shared_key = PolicyDocument(version=1, tenants=(ACME, other))
    with pytest.raises(ContractError, match="stands twice"):
        decode_policy_document(encode_policy_document(shared_key))


def test_a_rule_or_a_price_never_stands_twice() -> None:
    for document in (
        PolicyDocument(version=1, prices=(PRICE, PRICE)),
        PolicyDocument(version=1, tenants=(msgspec.structs.replace(ACME, rules=(RULE, RULE)),)),
    ):
        with pytest.raises(ContractError, match="stand"):
            decode_policy_document(encode_policy_document(document))


def test_the_tenants_rates_stand_in_one_place() -> None:
    rule = QuotaRule(requests_per_minute=5)
    document = PolicyDocument(version=1, tenants=(msgspec.structs.replace(ACME, rules=(rule,)),))
    with pytest.raises(ContractError, match=r"\$\.tenants\[0\]\.rules\[0\]"):
        decode_policy_document(encode_policy_document(document))


@pytest.mark.parametrize(
    ("tenant", "path"),
    [
        pytest.param({"organisation": "nobody"}, "$.tenants[0].organisation", id="organisation"),
        pytest.param(
            {"terms": (Terms(key_id="gone"),)}, "$.tenants[0].terms[0].key_id", id="no-such-key"
        ),
        pytest.param(
            {"terms": (Terms(model="m"), Terms(model="m"))}, "$.tenants[0].terms[1]", id="twice"
        ),
        pytest.param(
            {"rules": (QuotaRule(window=TimeWindow(opens="01:00", closes="02:00", zone="Moon")),)},
            "$.tenants[0].rules[0].window.zone",
            id="zone",
        ),
        pytest.param(
            {
                "terms": (
                    Terms(window=TimeWindow(opens="22:00", closes="06:00")),
                    Terms(window=TimeWindow(opens="05:00", closes="07:00", days=(Day.MONDAY,))),
                )
            },
            "$.tenants[0].terms[1].window",
            id="overlap",
        ),
    ],
)
def test_what_contradicts_itself_is_named_by_its_path(tenant: dict, path: str) -> None:
    document = PolicyDocument(version=1, tenants=(msgspec.structs.replace(ACME, **tenant),))
    with pytest.raises(ContractError) as raised:
        decode_policy_document(encode_policy_document(document))
    assert f"policy document: {path}: " in str(raised.value)


def test_an_organisation_has_no_keys() -> None:
    group = OrganisationPolicy(organisation_id="group", rules=(QuotaRule(key_id="k1"),))
    with pytest.raises(ContractError, match=r"\$\.organisations\[0\]"):
        decode_policy_document(
            encode_policy_document(PolicyDocument(version=1, organisations=(group,)))
        )


def test_no_two_rules_share_a_name() -> None:
    some = [None, "", "a", "=", "1=", "a=b", "0", "b"]
    names = [
        quota_rule_name(key, model, is_shadow=shadow)
        for key in some
        for model in some
        for shadow in (False, True)
    ]
    assert len(set(names)) == len(names)
    assert quota_rule_name(None, None) == ""


def test_key_hashes_depend_on_key_and_pepper() -> None:
    hashes = {
        hash_api_key(b"k1", PEPPER),
        hash_api_key(b"k2", PEPPER),
        hash_api_key(b"k1", PEPPER[::-1]),
    }
    assert len(hashes) == 3
    assert hash_api_key(b"k1", PEPPER) == hash_api_key(b"k1", PEPPER)
    with pytest.raises(ValueError, match="pepper"):
        hash_api_key(b"k1", b"short")


@pytest.mark.parametrize(
    ("tenant", "path"),
    [
        ({"keys": [{"key_id": "k\x1b[2J", "key_hash": "h", "key_prefix": "s"}]}, "keys[0].key_id"),
        ({"rules": [{"model": "m\n", "requests_per_minute": 1}]}, "rules[0].model"),
        ({"terms": [{"allowed_models": ["m", "n\u202e"]}]}, "terms[0].allowed_models[1]"),
    ],
    ids=["key", "model", "allowed-model"],
)
def test_a_name_cannot_forge_what_a_terminal_shows(tenant: dict[str, Any], path: str) -> None:
    document = {"tenants": [{"tenant_id": "acme", "tier": "free", **tenant}]}
    with pytest.raises(ContractError) as refused:
        from_plain(document)
    assert str(refused.value).startswith(f"policy document: $.tenants[0].{path}: expected print")
    tier = {"name": "gold\r", "limits": msgspec.to_builtins(TIERS["gold"])}
    with pytest.raises(ContractError, match=r"\$\.tiers\[0\]\.name: expected print"):
        from_plain({"tiers": [tier], "tenants": []})


def test_whose_servers_may_serve_a_tenant_is_explained() -> None:
    tenant = {"tenant_id": "acme", "tier": "free", "providers": ["openai", "rented"]}
    document = from_plain({"tenants": [tenant]})
    told = reasons(document, document.tenants[0], key=None, model=None, at=datetime.now(UTC))
    assert "providers openai, rented because tenant acme" in [reason.words for reason in told]


def test_a_provider_without_a_name_is_none() -> None:
    tenant = {"tenant_id": "acme", "tier": "free", "providers": ["openai", ""]}
    with pytest.raises(ContractError, match=r"\$\.tenants\[0\]\.providers\[1\]: expected a name"):
        from_plain({"tenants": [tenant]})


UNBORN = {"key_id": "k", "key_hash": "h", "key_prefix": "s", "created_at": "x"}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"version": "x", "tenants": []}, "$.version: expected an integer, got a text"),
        ({"tenants": "x"}, "$.tenants: expected a list, got a text"),
        ({"tenants": [{"tenant_id": "a", "tier": None}]}, "$.tenants[0].tier: expected a text"),
        ({"tenants": [{"tier": "free"}]}, "$.tenants[0]: tenant_id is missing"),
        (
            {"tenants": [{"tenant_id": "a", "tier": "free", "tokens_per_minute": "x"}]},
            "$.tenants[0].tokens_per_minute: expected an integer or null, got a text",
        ),
        (
            {"tenants": [{"tenant_id": "a", "tier": "free", "tokens_per_minute": 0}]},
            "$.tenants[0].tokens_per_minute: expected an integer >= 1",
        ),
        (
            {"tenants": [{"tenant_id": "a", "tier": "free", "keys": [UNBORN]}]},
            "$.tenants[0].keys[0].created_at: expected a date and time, such as 20",
        ),
    ],
    ids=str,
)
def test_a_fault_is_told_in_plain_words(document: dict[str, Any], told: str) -> None:
    with pytest.raises(ContractError) as refused:
        from_plain(document)
    assert str(refused.value).startswith(f"policy document: {told}")


def test_a_key_is_for_endpoints_that_there_are() -> None:
    key = {"key_id": "k", "key_hash": "h", "key_prefix": "sk", "endpoints": ["completion"]}
    tenant = {"tenant_id": "acme", "tier": "free", "keys": [key]}
    with pytest.raises(ContractError, match=r"\$\.tenants\[0\]\.keys\[0\]\.endpoints"):
        from_plain({"tenants": [tenant]})
    key["endpoints"] = ["completions"]
    document = from_plain({"tenants": [tenant]})
    found = document.tenants[0]
    told = reasons(document, found, key=found.keys[0], model=None, at=datetime.now(UTC))
    words = [reason.words for reason in told]
    assert "endpoints completions because key k" in words
    assert "providers none" in words
