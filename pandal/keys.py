"""Tenants and their API keys in the policy document that gateways read."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from contracts.api_keys import KeyOrder, RandomBytes, is_in_force, key_record, new_api_key
from contracts.errors import ContractError
from contracts.names import TenantId, tenant_id
from contracts.policy import (
    TIERS,
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    hash_api_key,
)
from contracts.quota import MAX_LIMIT
from contracts.resolution import rules_of, statements_about, view_of
from pandal.credentials import Credentials, load_or_create_credentials, renew_demo_key
from pandal.datadir import DataDir
from pandal.doctor.policies import unsatisfiable
from pandal.errors import BadOption
from pandal.policy_access import Edit, LocalPolicies, edited
from pandal.private_file import locked

DEMO_TENANT = TenantId("demo")
DEFAULT_TIER = "standard"

_ANY = KeyOrder()


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """``None`` leaves what the tenant has, or what its tier says."""

    tenant: TenantId
    tier: str | None = None
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    order: KeyOrder = _ANY


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What ``pandal keys create --json`` prints; the only place the key itself is shown."""

    tenant: TenantId
    key_id: str
    api_key: str
    tier: str
    tier_before: str | None  # None: there was no such tenant
    tokens_per_minute: int
    requests_per_minute: int
    warnings: tuple[str, ...] = ()  # of what the doctor finds wrong with its tenant's limits

    def __repr__(self) -> str:
        return f"CreatedKey(tenant={self.tenant!r}, key_id={self.key_id!r})"


def parse_key_request(
    *,
    tenant: str,
    tier: str | None,
    tokens_per_minute: int | None,
    requests_per_minute: int | None,
    order: KeyOrder | None = None,
) -> KeyRequest:
    """Raises BadOption."""
    try:
        name = tenant_id(tenant)
    except ContractError as exc:
        raise BadOption(f"--tenant: {exc}") from exc
    if tier is not None and tier not in TIERS:
        raise BadOption(f"--tier: expected one of {', '.join(sorted(TIERS))}, got {tier!r}")
    for option, limit in (("--tpm", tokens_per_minute), ("--rpm", requests_per_minute)):
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            raise BadOption(f"{option}: expected 1 to {MAX_LIMIT}, got {limit}")
    return KeyRequest(name, tier, tokens_per_minute, requests_per_minute, order or _ANY)


def create_key(
    data_dir: DataDir, request: KeyRequest, random_bytes: RandomBytes = os.urandom
) -> CreatedKey:
    """Stores the key's hash; the gateway accepts the key once it has re-read the file."""
    with locked(data_dir.credentials):
        credentials = load_or_create_credentials(data_dir, random_bytes)
    api_key = new_api_key(random_bytes)
    pepper, at = credentials.pepper_bytes, datetime.now(UTC)
    try:
        record = key_record(api_key, pepper, request.order, random_bytes, at)
    except ContractError as exc:
        raise BadOption(str(exc)) from exc
    tiers_before: dict[str, str] = {}

    def noted(before: PolicyDocument) -> PolicyDocument:
        """Of the edit that is stored: another may have come between."""
        tiers_before.clear()
        tiers_before.update({p.tenant_id: p.tier for p in before.tenants})
        return _with_key(before, request, record)

    after = edit_policies(
        data_dir.policies,
        noted,
        action="key.create",
        why=f"a key for {request.tenant}",
    )
    policy = next(p for p in after.tenants if p.tenant_id == request.tenant)
    view = view_of(statements_about(after, policy, key=None, model=None, at=at))
    limits, found = view.limits, unsatisfiable(policy, view, rules_of(after, policy, at))
    return CreatedKey(
        tenant=request.tenant,
        key_id=record.key_id,
        api_key=api_key,
        tier=policy.tier,
        tier_before=tiers_before.get(request.tenant),
        tokens_per_minute=limits.tokens_per_minute,
        requests_per_minute=limits.requests_per_minute,
        warnings=tuple(f"{finding.fact}: {finding.advice}" for finding in found),
    )


def ensure_demo_key(data_dir: DataDir, random_bytes: RandomBytes = os.urandom) -> Credentials:
    """The same demo key at each start, unless it was revoked or rotated: then another one.

    A policy file that lost it gets it back.
    """
    now = datetime.now(UTC)
    with locked(data_dir.credentials):
        credentials = load_or_create_credentials(data_dir, random_bytes)
        known = _record_of(data_dir, credentials)
        if known is not None and is_in_force(known, now):
            return credentials
        if known is not None:
            credentials = renew_demo_key(data_dir, random_bytes)
    record = key_record(credentials.demo_api_key, credentials.pepper_bytes, _ANY, random_bytes, now)
    edit_policies(
        data_dir.policies,
        lambda before: _with_key(before, KeyRequest(DEMO_TENANT), record),
        action="key.create",
        why="the demo's",
    )
    return credentials


def _record_of(data_dir: DataDir, credentials: Credentials) -> ApiKeyRecord | None:
    """The policy's record of the demo key."""
    key_hash = hash_api_key(credentials.demo_api_key.encode(), credentials.pepper_bytes)
    tenants = read_policies(data_dir.policies).tenants
    keys = (key for tenant in tenants for key in tenant.keys)
    return next((key for key in keys if key.key_hash == key_hash), None)


def read_policies(path: Path) -> PolicyDocument:
    """Raises StateUnreadable.  A file that does not exist yet is version 0."""
    return LocalPolicies(path).current().document


def edit_policies(path: Path, edit: Edit, *, action: str = "edit", why: str = "") -> PolicyDocument:
    """Applies ``edit`` to the current document; no edit of another process is lost."""
    return edited(LocalPolicies(path), edit, action=action, why=why)


def _with_key(before: PolicyDocument, request: KeyRequest, record: ApiKeyRecord) -> PolicyDocument:
    current = {p.tenant_id: p for p in before.tenants}
    policy = current.get(request.tenant)
    if policy is None:
        policy = TenantPolicy(tenant_id=request.tenant, tier=DEFAULT_TIER)
    current[request.tenant] = _updated(policy, request, record)
    return msgspec.structs.replace(before, tenants=tuple(current.values()))


def _updated(policy: TenantPolicy, request: KeyRequest, record: ApiKeyRecord) -> TenantPolicy:
    if request.tier is not None:
        policy = msgspec.structs.replace(policy, tier=request.tier)
    if request.tokens_per_minute is not None:
        policy = msgspec.structs.replace(policy, tokens_per_minute=request.tokens_per_minute)
    if request.requests_per_minute is not None:
        policy = msgspec.structs.replace(policy, requests_per_minute=request.requests_per_minute)
    return msgspec.structs.replace(policy, keys=(*policy.keys, record))
