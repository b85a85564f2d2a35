"""Keys over HTTP: given out once, rotated, revoked; their records can be listed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from fastapi import APIRouter

from contracts.api_keys import (
    KeyOrder,
    RandomBytes,
    key_of,
    key_record,
    new_api_key,
    tenant_of,
    with_key,
    with_revoked,
    with_rotated,
)
from contracts.errors import ContractError, Unknown
from contracts.policy import ApiKeyRecord
from gateway.admin.callers import Role
from gateway.admin.calling import Calling
from gateway.admin.desk import PolicyDesk
from gateway.admin.responses import documented
from gateway.admin.schemas import (
    CreatedKeyBody,
    KeyBody,
    KeyListBody,
    KeyOrderBody,
    KeysUsedBody,
    RotationBody,
)
from gateway.errors import PolicyRefused, UnknownName


class KeysUsed(Protocol):
    """The part of ``PolicyDocuments`` that this needs."""

    async def keys_used(self) -> Mapping[str, float]: ...


def key_router(
    desk: PolicyDesk, used: KeysUsed, pepper: bytes, random_bytes: RandomBytes
) -> APIRouter:
    routes = _KeyRoutes(desk, used, pepper, random_bytes)
    router = APIRouter(
        prefix="/admin/v1/tenants/{tenant}/keys", tags=["keys"], responses=documented(404, 412)
    )
    router.add_api_route("", routes.list)
    router.add_api_route("", routes.create, methods=["POST"], status_code=201)
    router.add_api_route("/{key_id}/rotate", routes.rotate, methods=["POST"])
    router.add_api_route("/{key_id}", routes.revoke, methods=["DELETE"])
    return router


def keys_used_router(used: KeysUsed) -> APIRouter:
    async def keys_used(calling: Calling) -> KeysUsedBody:
        """When keys were last used, by their ids; who is not among them was not, lately."""
        calling.require(Role.VIEWER)
        found = await used.keys_used()
        at = {key_id: datetime.fromtimestamp(at_s, UTC) for key_id, at_s in found.items()}
        return KeysUsedBody(last_used_at=at)

    router = APIRouter(prefix="/admin/v1", tags=["keys"], responses=documented())
    router.add_api_route("/keys-used", keys_used)
    return router


class _KeyRoutes:
    def __init__(
        self, desk: PolicyDesk, used: KeysUsed, pepper: bytes, random_bytes: RandomBytes
    ) -> None:
        self._desk = desk
        self._used = used
        self._pepper = pepper
        self._random_bytes = random_bytes

    async def list(self, calling: Calling, tenant: str) -> KeyListBody:
        """Their records: never a key, nor its hash."""
        calling.require(Role.VIEWER)
        document, used = (await self._desk.current()).document, await self._used.keys_used()
        try:
            keys = tenant_of(document, tenant).keys
        except Unknown as exc:
            raise UnknownName(f"{exc}.") from exc
        now = self._desk.now()
        return KeyListBody(keys=[KeyBody.of(k, now, _time(used.get(k.key_id))) for k in keys])

    async def create(self, calling: Calling, tenant: str, wanted: KeyOrderBody) -> CreatedKeyBody:
        """The only answer that holds the key."""
        calling.require(Role.OPERATOR)
        api_key, record = self._fresh(wanted.order())
        await self._desk.edited(
            lambda before: with_key(before, tenant, record),
            calling,
            action="key.create",
            why=f"{record.key_id} for {tenant}",
        )
        return _created(api_key, record, self._desk.now())

    async def rotate(
        self, calling: Calling, tenant: str, key_id: str, wanted: RotationBody
    ) -> CreatedKeyBody:
        """A new secret for the same key; the old one is good for a while longer."""
        calling.require(Role.OPERATOR)
        api_key, record = self._fresh(KeyOrder())
        overlap = timedelta(seconds=wanted.overlap_s)
        kept = await self._desk.edited(
            lambda before: with_rotated(before, tenant, key_id, record, overlap),
            calling,
            action="key.rotate",
            why=f"{key_id} of {tenant}",
        )
        changed = key_of(tenant_of(kept.document, tenant), key_id)
        return _created(api_key, changed, self._desk.now())

    async def revoke(self, calling: Calling, tenant: str, key_id: str) -> KeyBody:
        """At once, on every gateway; there is no way back."""
        calling.require(Role.OPERATOR)
        kept = await self._desk.edited(
            lambda before: with_revoked(before, tenant, key_id, self._desk.now()),
            calling,
            action="key.revoke",
            why=f"{key_id} of {tenant}",
        )
        changed = key_of(tenant_of(kept.document, tenant), key_id)
        return KeyBody.of(changed, self._desk.now(), None)

    def _fresh(self, order: KeyOrder) -> tuple[str, ApiKeyRecord]:
        api_key = new_api_key(self._random_bytes)
        try:
            record = key_record(api_key, self._pepper, order, self._random_bytes, self._desk.now())
        except ContractError as exc:
            raise PolicyRefused(f"{exc}.") from exc
        return api_key, record


def _time(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


def _created(api_key: str, record: ApiKeyRecord, at: datetime) -> CreatedKeyBody:
    shown = KeyBody.of(record, at, None).model_dump()
    return CreatedKeyBody(**shown, api_key=api_key)
