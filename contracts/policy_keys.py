"""What an edit of the whole document may do to keys, which have a life of their own.

One that was revoked must not come back to life because an older text has it still, and one that was
given out since that text must not die.  Nor may the secret of before a rotation come back.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from contracts.errors import ContractError
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy

_Keys = Mapping[str, ApiKeyRecord]  # of a tenant, by id


def rolled_back(before: PolicyDocument, older: PolicyDocument, at: datetime) -> PolicyDocument:
    """The older rules, with the keys of today; tenants that have come since stay."""
    known = {tenant.tenant_id for tenant in older.tenants}
    since = tuple(tenant for tenant in before.tenants if tenant.tenant_id not in known)
    found = imported(before, older, at)
    return msgspec.structs.replace(found, tenants=(*found.tenants, *since))


def imported(before: PolicyDocument, wanted: PolicyDocument, at: datetime) -> PolicyDocument:
    """A text of unknown age, with the keys of today: those that it alone knows are revoked.

    In place of nothing it is taken as it is.
    """
    if before.version == 0:
        return wanted
    now = {tenant.tenant_id: tenant.keys for tenant in before.tenants}
    tenants = tuple(_with_keys(t, now.get(t.tenant_id, ()), at) for t in wanted.tenants)
    return msgspec.structs.replace(wanted, tenants=tenants)


def replaced(before: PolicyDocument, after: PolicyDocument, at: datetime) -> PolicyDocument:
    """An edit of what is there.  A tenant for which it names no key at all keeps those it has.

    Raises ContractError for what is done to keys only one by one.
    """
    if before.version == 0:
        return after
    now = {tenant.tenant_id: tenant.keys for tenant in before.tenants}
    tenants = []
    for index, tenant in enumerate(after.tenants):
        today = now.get(tenant.tenant_id, ())
        if tenant.keys:
            _check(tenant, {key.key_id: key for key in today}, at, f"$.tenants[{index}].keys")
        tenants.append(tenant if tenant.keys else msgspec.structs.replace(tenant, keys=today))
    return msgspec.structs.replace(after, tenants=tuple(tenants))


def _with_keys(tenant: TenantPolicy, today: tuple[ApiKeyRecord, ...], at: datetime) -> TenantPolicy:
    known = {key.key_id for key in today}
    gone = tuple(_revoked(key, at) for key in tenant.keys if key.key_id not in known)
    return msgspec.structs.replace(tenant, keys=(*today, *gone))


def _revoked(key: ApiKeyRecord, at: datetime) -> ApiKeyRecord:
    revoked_at = key.revoked_at if _is_revoked(key, at) else at
    return msgspec.structs.replace(key, revoked_at=revoked_at, retiring=())


def _is_revoked(key: ApiKeyRecord, at: datetime) -> bool:
    return key.revoked_at is not None and key.revoked_at <= at


def _check(tenant: TenantPolicy, today: _Keys, at: datetime, where: str) -> None:
    named = {key.key_id for key in tenant.keys}
    for key_id in today:
        if key_id not in named:
            raise _fault(where, f"key {key_id!r} is left out: revoke it, and its record stays")
    for index, key in enumerate(tenant.keys):
        path, before = f"{where}[{index}]", today.get(key.key_id)
        if before is None:
            if not _is_revoked(key, at):
                raise _fault(path, f"key {key.key_id!r} is not known: keys are created one by one")
            continue
        if before.revoked_at is not None and not _is_as_soon(key, before.revoked_at):
            raise _fault(f"{path}.revoked_at", f"key {key.key_id!r} is revoked: it stays so")
        if key.key_hash != before.key_hash or not set(key.retiring) <= set(before.retiring):
            raise _fault(path, f"key {key.key_id!r} has another secret: rotate it")


def _is_as_soon(key: ApiKeyRecord, revoked_at: datetime) -> bool:
    return key.revoked_at is not None and key.revoked_at <= revoked_at


def _fault(path: str, words: str) -> ContractError:
    return ContractError(f"policy document: {path}: {words}")
