"""What a gateway that died left unsettled with the quota store, for another gateway to settle.

Whoever posts in its place puts it into the list ``names.quota_owed`` of the store; gateways take it
from there, with their own script.  Settling one twice changes nothing.
"""

import msgspec

from contracts.errors import UNDECODABLE, ContractError
from contracts.usage import Tokens


class OwedSettlement(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="owed.v1"):
    tenant_id: str
    event_id: str  # and so the reservation's
    tokens: Tokens
    nano_usd: int
    is_untold: bool = False  # the store did not decide it, and may never have heard of it


_decoder = msgspec.json.Decoder(OwedSettlement)


def encode_debt(debt: OwedSettlement) -> bytes:
    return msgspec.json.encode(debt)


def decode_debt(payload: bytes) -> OwedSettlement:
    """Raises ContractError."""
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise ContractError(f"owed settlement: {exc}") from exc
