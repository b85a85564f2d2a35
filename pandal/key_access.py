"""Keys as the command line manages them: in the local fleet's data, or over an admin API."""

import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from contracts.api_keys import (
    KeyOrder,
    RandomBytes,
    is_in_force,
    key_record,
    new_api_key,
    tenant_of,
    with_revoked,
    with_rotated,
)
from contracts.errors import ContractError, Unknown
from contracts.policy import ApiKeyRecord
from gateway.errors import GatewayError
from gateway.policy_documents.policy_file import PolicyFile
from pandal.admin_client import AdminClient, decoded
from pandal.credentials import load_or_create_credentials
from pandal.datadir import DataDir
from pandal.errors import BadOption, NotFound, StateUnreadable
from pandal.policy_access import Edit, LocalPolicies, edited
from pandal.private_file import locked


class KeyNews(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of a key at any time."""

    key_id: str
    key_prefix: str
    name: str
    is_in_force: bool
    num_retiring: int = 0  # secrets from before a rotation that are still good
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None


class NewSecret(msgspec.Struct, frozen=True, kw_only=True):
    """Shown once."""

    key_id: str
    api_key: str

    def __repr__(self) -> str:
        return f"NewSecret(key_id={self.key_id!r})"


class KeyAccess(Protocol):
    """Raises NotFound or BadOption for a tenant or key that is not there."""

    def keys(self, tenant: str) -> Sequence[KeyNews]: ...

    def last_used(self) -> Mapping[str, datetime]:
        """Of all tenants' keys by id, as far as it was noted."""

    def rotate(self, tenant: str, key_id: str, overlap: timedelta) -> NewSecret: ...

    def revoke(self, tenant: str, key_id: str) -> None: ...


class LocalKeys:
    """New keys are ``pandal.keys``'."""

    def __init__(self, data_dir: DataDir, random_bytes: RandomBytes) -> None:
        self._data_dir = data_dir
        self._random_bytes = random_bytes
        self._policies = LocalPolicies(data_dir.policies)

    def keys(self, tenant: str) -> Sequence[KeyNews]:
        try:
            found = tenant_of(self._policies.current().document, tenant).keys
        except Unknown as exc:
            raise NotFound(str(exc)) from exc
        now, used = datetime.now(UTC), self.last_used()
        return [_news(key, now, used.get(key.key_id)) for key in found]

    def last_used(self) -> Mapping[str, datetime]:
        try:
            used = PolicyFile(self._data_dir.policies).keys_used()
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc
        return {key_id: datetime.fromtimestamp(at_s, UTC) for key_id, at_s in used.items()}

    def rotate(self, tenant: str, key_id: str, overlap: timedelta) -> NewSecret:
        with locked(self._data_dir.credentials):
            credentials = load_or_create_credentials(self._data_dir, self._random_bytes)
        api_key = new_api_key(self._random_bytes)
        fresh = key_record(
            api_key, credentials.pepper_bytes, KeyOrder(), self._random_bytes, datetime.now(UTC)
        )
        self._edit(
            lambda before: with_rotated(before, tenant, key_id, fresh, overlap),
            "key.rotate",
            f"{key_id} of {tenant}",
        )
        return NewSecret(key_id=key_id, api_key=api_key)

    def revoke(self, tenant: str, key_id: str) -> None:
        self._edit(
            lambda before: with_revoked(before, tenant, key_id, datetime.now(UTC)),
            "key.revoke",
            f"{key_id} of {tenant}",
        )

    def _edit(self, edit: Edit, action: str, why: str) -> None:
        try:
            edited(self._policies, edit, action=action, why=why)
        except Unknown as exc:
            raise NotFound(str(exc)) from exc
        except ContractError as exc:
            raise BadOption(str(exc)) from exc


class RemoteKeys:
    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def keys(self, tenant: str) -> Sequence[KeyNews]:
        body, _ = self._client.call("GET", _path(tenant))
        return decoded(body, _KeyList).keys

    def last_used(self) -> Mapping[str, datetime]:
        body, _ = self._client.call("GET", "/keys-used")
        return decoded(body, _KeysUsed).last_used_at

    def create(self, tenant: str, order: KeyOrder) -> NewSecret:
        wanted: dict[str, Any] = {
            "name": order.name,
            "expires_at": order.expires_at,
            "models": order.models,
            "endpoints": order.endpoints,
        }
        return self._secret("POST", _path(tenant), wanted)

    def rotate(self, tenant: str, key_id: str, overlap: timedelta) -> NewSecret:
        wanted = {"overlap_s": int(overlap.total_seconds())}
        return self._secret("POST", f"{_path(tenant, key_id)}/rotate", wanted)

    def revoke(self, tenant: str, key_id: str) -> None:
        self._client.call("DELETE", _path(tenant, key_id))

    def _secret(self, method: str, path: str, wanted: object) -> NewSecret:
        body, _ = self._client.call(method, path, msgspec.json.encode(wanted))
        return decoded(body, NewSecret)


class _KeyList(msgspec.Struct):
    keys: list[KeyNews]


class _KeysUsed(msgspec.Struct):
    last_used_at: dict[str, datetime]


def _path(tenant: str, key_id: str | None = None) -> str:
    path = f"/tenants/{urllib.parse.quote(tenant, safe='')}/keys"
    return path if key_id is None else f"{path}/{urllib.parse.quote(key_id, safe='')}"


def _news(key: ApiKeyRecord, now: datetime, last_used_at: datetime | None) -> KeyNews:
    return KeyNews(
        key_id=key.key_id,
        key_prefix=key.key_prefix,
        name=key.name,
        is_in_force=is_in_force(key, now),
        num_retiring=sum(secret.expires_at > now for secret in key.retiring),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=last_used_at,
        models=key.models,
        endpoints=key.endpoints,
    )
