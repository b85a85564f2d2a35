"""Policy documents: golden bytes, inheritance, and faults named by their path."""

import msgspec
import pytest

from contracts.errors import ContractError
from contracts.names import quota_rule_name, tenant_id
from contracts.policy import (
    TIERS,
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
    encode_policy_document,
    hash_api_key,
)
from contracts.quota import ModelPrice, QuotaRule

PEPPER = b"0123456789abcdef"
KEY = ApiKeyRecord(key_id="k1", key_hash="ab", key_prefix="sk-pandal-Xy")
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
GOLDEN = b"""{
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


def test_golden_bytes() -> None:
    assert encode_policy_document(DOCUMENT) == GOLDEN
    assert decode_policy_document(GOLDEN) == DOCUMENT
    assert msgspec.json.encode(TIERS["free"]) == LIMITS_GOLDEN


def test_a_tenants_own_limit_wins_over_its_tier() -> None:
    limits = ACME.limits()
    assert limits.tokens_per_minute == 5_000
    assert limits.requests_per_minute == TIERS["standard"].requests_per_minute


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
        decode_policy_document(GOLDEN.replace(old, new))
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


def test_no_two_rules_share_a_name() -> None:
    some = [None, "", "a", "=", "1=", "a=b", "0", "b"]
    names = [quota_rule_name(key, model) for key in some for model in some]
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
