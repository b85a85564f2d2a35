"""The life of an API key in a policy document: given out, rotated, revoked.

Pure: whoever calls gives the time and the randomness, and shows the key to whom it is for.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from contracts.errors import ContractError, Unknown
from contracts.policy import (
    ApiKeyRecord,
    PolicyDocument,
    RetiringSecret,
    TenantPolicy,
    hash_api_key,
)
from contracts.usage import Endpoint

RandomBytes = Callable[[int], bytes]

_KEY_PREFIX: Final = "sk-pandal-"
_SECRET_BYTES: Final = 32  # 43 url-safe characters
_SHOWN_PREFIX_CHARS: Final = 14  # "sk-pandal-" and four of the 43 secret characters
_KEY_ID_BYTES: Final = 6
_MAX_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """What is asked for; ``None`` for a scope: whatever the tenant may."""

    name: str = ""
    expires_at: datetime | None = None
    models: Sequence[str] | None = None
    endpoints: Sequence[Endpoint] | None = None


def new_api_key(random_bytes: RandomBytes) -> str:
    return _KEY_PREFIX + new_secret(random_bytes)


def new_secret(random_bytes: RandomBytes) -> str:
    """256 bits, url-safe."""
    return base64.urlsafe_b64encode(random_bytes(_SECRET_BYTES)).rstrip(b"=").decode()


def key_record(
    api_key: str, pepper: bytes, order: KeyOrder, random_bytes: RandomBytes, at: datetime
) -> ApiKeyRecord:
    """Raises ContractError for one that nobody could use."""
    if len(order.name) > _MAX_NAME_CHARS or not order.name.isprintable():
        raise ContractError(f"name: expected at most {_MAX_NAME_CHARS} printable characters")
    if order.models is not None and not all(order.models):
        raise ContractError("models: expected names, got an empty one")
    if order.expires_at is not None and order.expires_at <= at:
        raise ContractError("expires_at: expected a time to come")
    return ApiKeyRecord(
        key_id="key-" + random_bytes(_KEY_ID_BYTES).hex(),
        key_hash=hash_api_key(api_key.encode(), pepper),
        key_prefix=api_key[:_SHOWN_PREFIX_CHARS],
        name=order.name,
        created_at=at,
        expires_at=order.expires_at,
        models=None if order.models is None else tuple(order.models),
        endpoints=None if order.endpoints is None else tuple(order.endpoints),
    )


def tenant_of(document: PolicyDocument, name: str) -> TenantPolicy:
    """Raises Unknown."""
    for tenant in document.tenants:
        if tenant.tenant_id == name:
            return tenant
    raise Unknown(f"there is no tenant {name!r}")


def key_of(tenant: TenantPolicy, key_id: str) -> ApiKeyRecord:
    """Raises Unknown."""
    for key in tenant.keys:
        if key.key_id == key_id:
            return key
    raise Unknown(f"tenant {tenant.tenant_id!r} has no key {key_id!r}")


def with_key(document: PolicyDocument, name: str, record: ApiKeyRecord) -> PolicyDocument:
    """Raises Unknown."""
    tenant = tenant_of(document, name)
    return _with_keys(document, tenant, (*tenant.keys, record))


def with_rotated(
    document: PolicyDocument, name: str, key_id: str, fresh: ApiKeyRecord, overlap: timedelta
) -> PolicyDocument:
    """The key, its id and its scopes with the secret of ``fresh``; older ones go on until then.

    Raises Unknown, and ContractError for a key that is over.
    """
    tenant = tenant_of(document, name)
    key, at = key_of(tenant, key_id), fresh.created_at
    assert at is not None, "what is fresh has a time"
    if not is_in_force(key, at):
        raise ContractError(f"key {key_id!r} is revoked or expired")
    until = at + overlap
    old = RetiringSecret(key_hash=key.key_hash, key_prefix=key.key_prefix, expires_at=until)
    older = (_ending(secret, until) for secret in key.retiring)
    still = tuple(secret for secret in (*older, old) if secret.expires_at > at)
    changed = msgspec.structs.replace(
        key, key_hash=fresh.key_hash, key_prefix=fresh.key_prefix, retiring=still
    )
    return _with_keys(document, tenant, tuple(changed if k is key else k for k in tenant.keys))


def with_revoked(document: PolicyDocument, name: str, key_id: str, at: datetime) -> PolicyDocument:
    """The record stays, so that people find what was revoked.  Raises Unknown."""
    tenant = tenant_of(document, name)
    key = key_of(tenant, key_id)
    if key.revoked_at is not None and key.revoked_at <= at:
        return document
    changed = msgspec.structs.replace(key, revoked_at=at, retiring=())
    return _with_keys(document, tenant, tuple(changed if k is key else k for k in tenant.keys))


def is_in_force(key: ApiKeyRecord, at: datetime) -> bool:
    is_revoked = key.revoked_at is not None and key.revoked_at <= at
    is_expired = key.expires_at is not None and key.expires_at <= at
    return not is_revoked and not is_expired


def _ending(secret: RetiringSecret, until: datetime) -> RetiringSecret:
    """Whoever shortens the overlap wants no older secret to outlive it."""
    return msgspec.structs.replace(secret, expires_at=min(secret.expires_at, until))


def _with_keys(
    document: PolicyDocument, tenant: TenantPolicy, keys: tuple[ApiKeyRecord, ...]
) -> PolicyDocument:
    changed = msgspec.structs.replace(tenant, keys=keys)
    tenants = tuple(changed if t is tenant else t for t in document.tenants)
    return msgspec.structs.replace(document, tenants=tenants)
