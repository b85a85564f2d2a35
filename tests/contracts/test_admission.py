"""How requests are let in: golden bytes, bounds, and whose word counts."""

from datetime import UTC, datetime

import msgspec
import pytest

from contracts.admission import ADMISSION_TIERS, AdmissionPolicy
from contracts.errors import ContractError
from contracts.names import tenant_id
from contracts.policy import (
    TIERS,
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
    encode_policy_document,
)
from contracts.resolution import statements_about, view_of

GOLDEN = (
    b'{"type":"admission.v1","max_prompt_tokens":8192,"counting":"learned",'
    b'"completion_bound":"asked","cached_token_weight":1.0,"service_class":"standard",'
    b'"weight":1,"priority":1,"ttft_target_ms":null,"max_queue_ms":0}'
)


def test_golden_bytes() -> None:
    assert msgspec.json.encode(ADMISSION_TIERS["free"]) == GOLDEN
    assert msgspec.json.decode(GOLDEN, type=AdmissionPolicy) == ADMISSION_TIERS["free"]


def test_every_tier_has_its_admission() -> None:
    assert ADMISSION_TIERS.keys() == TIERS.keys()


def test_a_tenants_own_admission_stands_in_place_of_its_tiers() -> None:
    own = AdmissionPolicy(max_prompt_tokens=5)
    tenant = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", admission=own)
    document = PolicyDocument(version=1, tenants=(tenant,))
    said = statements_about(document, tenant, key=None, model=None, at=datetime.now(UTC))
    assert view_of(said).admission == own
    assert decode_policy_document(encode_policy_document(document)) == document


@pytest.mark.parametrize(
    "fault",
    [
        {"max_prompt_tokens": 0},
        {"cached_token_weight": 1.5},
        {"weight": 0},
        {"priority": 101},
        {"max_queue_ms": -1},
        {"ttft_target_ms": 0},
        {"counting": "guessed"},
        {"service_class": "first"},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_field_out_of_bounds_is_refused_by_its_path(fault: dict[str, object]) -> None:
    admission = {"type": "admission.v1", **fault}
    tenant = {
        "type": "tenant.policy.v1",
        "tenant_id": "acme",
        "tier": "gold",
        "admission": admission,
    }
    document = {"type": "policy.document.v1", "version": 1, "tenants": [tenant]}
    (name,) = fault
    with pytest.raises(ContractError, match=rf"admission\.{name}"):
        decode_policy_document(msgspec.json.encode(document))
