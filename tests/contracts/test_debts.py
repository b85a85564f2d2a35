"""What a dead gateway owes, byte by byte."""

import pytest

from contracts.debts import OwedSettlement, decode_debt, encode_debt
from contracts.errors import ContractError

DEBT = OwedSettlement(tenant_id="acme", event_id="e1", tokens=104, nano_usd=187_201)
GOLDEN = (
    b'{"type":"owed.v1","tenant_id":"acme","event_id":"e1","tokens":104,"nano_usd":187201,'
    b'"is_untold":false}'
)


def test_golden_bytes() -> None:
    assert encode_debt(DEBT) == GOLDEN
    assert decode_debt(GOLDEN) == DEBT


@pytest.mark.parametrize("payload", [b"", b"{}", GOLDEN.replace(b"104", b"-1")])
def test_what_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ContractError):
        decode_debt(payload)
