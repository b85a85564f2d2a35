"""What an edit changed, by path; and what people misspell."""

from datetime import UTC, datetime

import msgspec
import pytest

from contracts.errors import ContractError
from contracts.names import tenant_id
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy, encode_policy_document
from contracts.policy_change import (
    Editing,
    FieldChange,
    change_of,
    decode_policy_change,
    differences,
    etag_of,
)
from contracts.policy_text import from_plain, to_plain
from contracts.quota import QuotaRule
from contracts.terms import Terms
from contracts.windows import TimeWindow

KEY = ApiKeyRecord(key_id="k1", key_hash="ab", key_prefix="sk")
ACME = TenantPolicy(
    tenant_id=tenant_id("acme"),
    tier="free",
    keys=(KEY,),
    rules=(QuotaRule(model="m", concurrent_requests=3),),
    terms=(Terms(weight=2, window=TimeWindow(opens="22:00", closes="06:00")),),
)
BEFORE = PolicyDocument(version=3, tenants=(ACME,))


def after(**tenant: object) -> PolicyDocument:
    return PolicyDocument(version=4, tenants=(msgspec.structs.replace(ACME, **tenant),))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tier": "gold"}, 'tenants[acme].tier: "free" -> "gold"'),
        ({"tokens_per_minute": 5}, "tenants[acme].tokens_per_minute: (none) -> 5"),
        (
            {"rules": (QuotaRule(model="m", concurrent_requests=4),)},
            "tenants[acme].rules[model=m].concurrent_requests: 3 -> 4",
        ),
        (
            {"terms": (Terms(weight=3, window=TimeWindow(opens="22:00", closes="06:00")),)},
            "tenants[acme].terms[window=22:00-06:00].weight: 2 -> 3",
        ),
        ({"keys": ()}, 'tenants[acme].keys[k1]: {"key_id":"k1","key_prefix":"sk"} -> (none)'),
    ],
    ids=str,
)
def test_a_change_is_told_by_its_path(changed: dict, words: str) -> None:
    assert [change.words for change in differences(BEFORE, after(**changed))] == [words]


def test_neither_order_nor_version_is_a_change() -> None:
    other = TenantPolicy(tenant_id=tenant_id("other"), tier="free")
    one = PolicyDocument(version=1, tenants=(ACME, other))
    assert differences(one, PolicyDocument(version=2, tenants=(other, ACME))) == []


def test_golden_bytes() -> None:
    changed = after(tier="gold")
    editing = Editing(datetime(2026, 11, 30, 8, tzinfo=UTC), "ann", "edit", "grows")
    payload = encode_policy_document(changed)
    change = change_of(BEFORE, changed, payload, editing)
    golden = (
        b'{"type":"policy.change.v1","version":4,"etag":"' + etag_of(payload).encode() + b'",'
        b'"at":"2026-11-30T08:00:00Z","who":"ann","action":"edit","why":"grows","num_changes":1,'
        b'"changes":[{"type":"policy.field_change.v1","path":"tenants[acme].tier",'
        b'"before":"free","after":"gold"}]}'
    )
    assert msgspec.json.encode(change) == golden
    assert decode_policy_change(golden) == change
    assert isinstance(change.changes[0], FieldChange)


def test_a_document_survives_its_plain_form() -> None:
    assert from_plain(to_plain(BEFORE)) == BEFORE
    assert "type" not in to_plain(BEFORE)["tenants"][0]


@pytest.mark.parametrize(
    ("plain", "path"),
    [
        ({"tenant": []}, "$.tenant: "),
        ({"tenants": [{"tenant_id": "a", "tier": "free", "tpm": 3}]}, "$.tenants[0].tpm: "),
        (
            {"tenants": [{"tenant_id": "a", "tier": "free", "rules": [{"window": {"from": "9"}}]}]},
            "$.tenants[0].rules[0].window.from: ",
        ),
        ({"tenants": [{"tenant_id": "a", "tier": "none"}]}, "$.tenants[0].tier: "),
        ({"tenants": [{"tenant_id": "a"}]}, "$.tenants[0]"),
        ([], "$: "),
    ],
    ids=str,
)
def test_a_misspelt_member_is_named_by_its_path(plain: object, path: str) -> None:
    with pytest.raises(ContractError) as raised:
        from_plain(plain)
    assert path in str(raised.value)
