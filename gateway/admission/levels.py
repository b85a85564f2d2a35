"""What is left of a tenant's two rates now, for people: read, and decided by nobody."""

from dataclasses import dataclass
from typing import Final

from contracts.names import TenantId, quota_bucket_key
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import pack

_UNIT: Final = 60_000  # as in buckets.lua
_FIELDS: Final = ("tokens", "requests", "at_ms", "tpm", "rpm")


@dataclass(frozen=True, slots=True)
class Levels:
    tokens: int
    tokens_per_minute: int
    requests: int
    requests_per_minute: int


async def levels_of(store: QuotaStore, tenant: TenantId, now_ms: int) -> Levels | None:
    """``None``: it has asked for nothing lately, so all is left.  Raises QuotaUnavailable."""
    found = await store.call(pack("HMGET", quota_bucket_key(tenant), *_FIELDS), slot_of(tenant))
    if not isinstance(found, list) or None in found:
        return None
    tokens, requests, at_ms, tpm, rpm = (int(float(value)) for value in found)
    elapsed_ms = max(0, now_ms - at_ms)
    return Levels(
        tokens=_left(tokens, tpm, elapsed_ms),
        tokens_per_minute=tpm,
        requests=_left(requests, rpm, elapsed_ms),
        requests_per_minute=rpm,
    )


def _left(level: int, limit: int, elapsed_ms: int) -> int:
    return max(0, min(limit * _UNIT, level + elapsed_ms * limit) // _UNIT)
