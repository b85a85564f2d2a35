"""What an edit of the whole document may do to keys, which have a life of their own.

One that was revoked must not come back to life because an older text has it still, and one that was
given out since that text must not die.  Nor may the secret of before a rotation come back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from contracts.errors import ContractError
from contracts.names import TenantId
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy

_Keys = Mapping[str, ApiKeyRecord]  # of a tenant, by id


@dataclass(frozen=True, slots=True)
class LastKeys:
    """Of tenants that an older version has and the present one has not."""

    unseen: frozenset[TenantId]
    by_tenant: Mapping[TenantId, tuple[ApiKeyRecord, ...]]

    def or_of(self, version: PolicyDocument) -> "LastKeys":
        """One version after the other is asked, the newest first."""
        found = {t.tenant_id: t.keys for t in version.tenants if t.tenant_id in self.unseen}
        return LastKeys(self.unseen - found.keys(), {**self.by_tenant, **found})


def no_last_keys(before: PolicyDocument, older: PolicyDocument) -> LastKeys:
    """To begin with.  In place of nothing none are needed."""
    present = {tenant.tenant_id for tenant in before.tenants}
    gone = (t.tenant_id for t in older.tenants if t.tenant_id not in present)
    return LastKeys(frozenset(gone if before.version else ()), {})


def rolled_back(
    before: PolicyDocument, older: PolicyDocument, at: datetime, last: LastKeys
) -> PolicyDocument:
    """The older rules, with the keys of today; tenants that have come since stay.

    A tenant that comes back has the keys that it went with: nobody has revoked those.  Raises
    ContractError where nobody knows any more which these were.
    """
    if last.unseen:
        names = ", ".join(map(repr, sorted(last.unseen)))
        raise _fault("$.tenants", f"the last keys of {names} are not kept: import that version")
    known = {tenant.tenant_id for tenant in older.tenants}
    since = tuple(tenant for tenant in before.tenants if tenant.tenant_id not in known)
    found = older if before.version == 0 else _of_today(before, older, at, last.by_tenant)
    return msgspec.structs.replace(found, tenants=(*found.tenants, *since))


def imported(
    before: PolicyDocument, wanted: PolicyDocument, at: datetime, *, drops_all: bool = False
) -> PolicyDocument:
    """A text of unknown age, with the keys of today: those that it alone knows are revoked.

    In place of nothing it is taken as it is.  Raises ContractError where no tenant is left.
    """
    if before.version == 0:
        return wanted
    _check_some_stay(before, wanted, drops_all=drops_all)
    return _of_today(before, wanted, at, {})


def _of_today(
    before: PolicyDocument,
    wanted: PolicyDocument,
    at: datetime,
    of_gone: Mapping[TenantId, tuple[ApiKeyRecord, ...]],
) -> PolicyDocument:
    now = {**of_gone, **{tenant.tenant_id: tenant.keys for tenant in before.tenants}}
    tenants = tuple(_with_keys(t, now.get(t.tenant_id, ()), at) for t in wanted.tenants)
    return msgspec.structs.replace(wanted, tenants=tenants)


def replaced(
    before: PolicyDocument, after: PolicyDocument, at: datetime, *, drops_all: bool = False
) -> PolicyDocument:
    """An edit of what is there.  A tenant for which it names no key at all keeps those it has.

    Raises ContractError for what is done to keys only one by one, and where no tenant is left.
    """
    if before.version == 0:
        return after
    _check_some_stay(before, after, drops_all=drops_all)
    now = {tenant.tenant_id: tenant.keys for tenant in before.tenants}
    tenants = []
    for index, tenant in enumerate(after.tenants):
        today = now.get(tenant.tenant_id, ())
        if tenant.keys:
            _check(tenant, {key.key_id: key for key in today}, at, f"$.tenants[{index}].keys")
        tenants.append(tenant if tenant.keys else msgspec.structs.replace(tenant, keys=today))
    return msgspec.structs.replace(after, tenants=tuple(tenants))


def _check_some_stay(before: PolicyDocument, after: PolicyDocument, *, drops_all: bool) -> None:
    """A text that was cut off must not shut everybody out."""
    if before.tenants and not after.tenants and not drops_all:
        raise _fault("$.tenants", f"drops all {len(before.tenants)}: that is to be said")


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
