"""Fallback chains as they stand in a policy document."""

import msgspec
import pytest

from contracts.errors import ContractError
from contracts.fallbacks import FallbackChain, FallbackStep
from contracts.names import tenant_id
from contracts.policy import (
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
    encode_policy_document,
)

CHAIN = FallbackChain(
    model="big",
    steps=(
        FallbackStep(model="small", max_context_tokens=8_192),
        FallbackStep(model="claude", provider="anthropic"),
    ),
    wait_ms=500,
)
GOLDEN = (
    b'{"type":"fallback.chain.v1","model":"big","steps":['
    b'{"type":"fallback.step.v1","model":"small","max_context_tokens":8192},'
    b'{"type":"fallback.step.v1","model":"claude","provider":"anthropic"}],"wait_ms":500}'
)


def document(*chains: FallbackChain) -> PolicyDocument:
    tenant = TenantPolicy(tenant_id=tenant_id("acme"), tier="gold", fallbacks=chains)
    return PolicyDocument(version=1, tenants=(tenant,))


def test_golden_bytes() -> None:
    assert msgspec.json.encode(CHAIN) == GOLDEN
    assert msgspec.json.decode(GOLDEN, type=FallbackChain) == CHAIN


def test_a_document_with_a_chain() -> None:
    written = document(CHAIN)
    assert decode_policy_document(encode_policy_document(written)) == written


def test_a_providers_model_is_priced_under_its_name() -> None:
    assert [step.priced_as for step in CHAIN.steps] == ["small", "anthropic/claude"]


@pytest.mark.parametrize(
    ("chains", "path"),
    [
        ((CHAIN, CHAIN), r"\$\.tenants\[0\]\.fallbacks\[1\]\.model"),
        ((FallbackChain(model="m", steps=(FallbackStep(model="m"),)),), r"steps\[0\]\.model"),
        (
            (FallbackChain(model="m", steps=(FallbackStep(model="a"), FallbackStep(model="a"))),),
            r"steps\[1\]\.model",
        ),
    ],
)
def test_no_chain_goes_in_circles(chains: tuple[FallbackChain, ...], path: str) -> None:
    with pytest.raises(ContractError, match=path):
        decode_policy_document(encode_policy_document(document(*chains)))
