"""An older policy document, to be in force again: with the keys of today.

Keys have a life of their own.  One that was revoked since then must not come back to life, and one
that was given out since then must not die.
"""

from datetime import datetime

import msgspec

from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy


def rolled_back(before: PolicyDocument, older: PolicyDocument, at: datetime) -> PolicyDocument:
    now = {tenant.tenant_id: tenant for tenant in before.tenants}
    tenants = tuple(
        _with_keys_of(now[tenant.tenant_id], tenant, at) if tenant.tenant_id in now else tenant
        for tenant in older.tenants
    )
    return msgspec.structs.replace(older, tenants=tenants)


def _with_keys_of(today: TenantPolicy, older: TenantPolicy, at: datetime) -> TenantPolicy:
    known = {key.key_id for key in today.keys}
    gone = tuple(_revoked(key, at) for key in older.keys if key.key_id not in known)
    return msgspec.structs.replace(older, keys=(*today.keys, *gone))


def _revoked(key: ApiKeyRecord, at: datetime) -> ApiKeyRecord:
    return msgspec.structs.replace(key, revoked_at=at, retiring=())
