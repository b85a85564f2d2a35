"""Tenants and their API keys in the policy file that gateways read.

It is edited by one process at a time and replaced whole.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.errors import ContractError
from contracts.names import TenantId, tenant_id
from contracts.policy import (
    TIERS,
    ApiKeyRecord,
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
    encode_policy_document,
    hash_api_key,
)
from contracts.quota import MAX_LIMIT
from pandal.credentials import Credentials, RandomBytes, load_or_create_credentials, new_api_key
from pandal.datadir import DataDir
from pandal.errors import BadOption, StateUnreadable
from pandal.private_file import locked, replace_private

DEMO_TENANT = TenantId("demo")
DEFAULT_TIER = "standard"
_SHOWN_PREFIX_CHARS = 14  # "sk-pandal-" and four of the 43 secret characters
_KEY_ID_BYTES = 6
_EMPTY = PolicyDocument(version=0)


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """``None`` leaves what the tenant has, or what its tier says."""

    tenant: TenantId
    tier: str | None = None
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What ``pandal keys create --json`` prints; the only place the key itself is shown."""

    tenant: TenantId
    key_id: str
    api_key: str
    tier: str
    tokens_per_minute: int
    requests_per_minute: int

    def __repr__(self) -> str:
        return f"CreatedKey(tenant={self.tenant!r}, key_id={self.key_id!r})"


def parse_key_request(
    *, tenant: str, tier: str | None, tokens_per_minute: int | None, requests_per_minute: int | None
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
    return KeyRequest(name, tier, tokens_per_minute, requests_per_minute)


def create_key(
    data_dir: DataDir, request: KeyRequest, random_bytes: RandomBytes = os.urandom
) -> CreatedKey:
    """Stores the key's hash; the gateway accepts the key once it has re-read the file."""
    with locked(data_dir.credentials):
        credentials = load_or_create_credentials(data_dir, random_bytes)
    api_key = new_api_key(random_bytes)
    record = _record(api_key, credentials.pepper_bytes, random_bytes)
    after = edit_policies(data_dir.policies, lambda before: _with_key(before, request, record))
    policy = next(p for p in after.tenants if p.tenant_id == request.tenant)
    limits = policy.limits()
    return CreatedKey(
        tenant=request.tenant,
        key_id=record.key_id,
        api_key=api_key,
        tier=policy.tier,
        tokens_per_minute=limits.tokens_per_minute,
        requests_per_minute=limits.requests_per_minute,
    )


def ensure_demo_key(data_dir: DataDir, random_bytes: RandomBytes = os.urandom) -> Credentials:
    """The same demo key at each start; a policy file that lost it gets it back."""
    with locked(data_dir.credentials):
        credentials = load_or_create_credentials(data_dir, random_bytes)
    api_key, pepper = credentials.demo_api_key, credentials.pepper_bytes
    key_hash = hash_api_key(api_key.encode(), pepper)
    known = {k.key_hash for p in read_policies(data_dir.policies).tenants for k in p.keys}
    if key_hash not in known:
        record = _record(api_key, pepper, random_bytes)
        request = KeyRequest(DEMO_TENANT)
        edit_policies(data_dir.policies, lambda before: _with_key(before, request, record))
    return credentials


def read_policies(path: Path) -> PolicyDocument:
    """Raises StateUnreadable.  A file that does not exist yet is version 0."""
    try:
        return decode_policy_document(path.read_bytes())
    except FileNotFoundError:
        return _EMPTY
    except ContractError as exc:
        raise StateUnreadable(f"{path}: {exc}") from exc


def edit_policies(path: Path, edit: Callable[[PolicyDocument], PolicyDocument]) -> PolicyDocument:
    """Applies ``edit`` to the current document; no edit of another process is lost."""
    with locked(path):
        before = read_policies(path)
        after = msgspec.structs.replace(edit(before), version=before.version + 1)
        payload = encode_policy_document(after)
        decode_policy_document(payload)  # a document that gateways refuse is never written
        replace_private(path, payload)
        return after


def _record(api_key: str, pepper: bytes, random_bytes: RandomBytes) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id="key-" + random_bytes(_KEY_ID_BYTES).hex(),
        key_hash=hash_api_key(api_key.encode(), pepper),
        key_prefix=api_key[:_SHOWN_PREFIX_CHARS],
    )


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
