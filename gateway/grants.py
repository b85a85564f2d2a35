"""What each API key stands for, worked out once for a whole policy document and not per request."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from zlib import crc32

from contracts.admission import AdmissionPolicy
from contracts.api_keys import is_in_force
from contracts.names import TenantId
from contracts.policy import (
    ApiKeyRecord,
    Limits,
    OrganisationPolicy,
    PolicyDocument,
    TenantPolicy,
)
from contracts.quota import ModelPrice, QuotaRule, own_name
from contracts.resolution import View, rules_of, statements_about, view_of
from gateway.errors import EndpointNotAllowed, ModelNotAllowed

_SALT_PERSON = b"pandal.salt"  # keeps salts apart from the key hashes made with the same pepper
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_Views = dict[tuple[object, ...], View]  # of tenants of whom the same is said


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key may ask for; ``None``: anything."""

    endpoints: frozenset[str] | None
    models: frozenset[str] | None  # as replicas call them

    def check(self, endpoint: str, model: str) -> None:
        """Raises EndpointNotAllowed, ModelNotAllowed."""
        if self.endpoints is not None and endpoint not in self.endpoints:
            raise EndpointNotAllowed("This API key is not for this endpoint.")
        if self.models is not None and model not in self.models:
            raise ModelNotAllowed("This API key is not for this model.")

    def has_model(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Grant:
    """What one API key stands for, with the models of which something else is said."""

    tenant: TenantPolicy
    key: ApiKeyRecord
    limits: Limits
    admission: AdmissionPolicy
    salt: bytes  # [32] secret of the tenant: seeds cache salts and prefix affinity
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)  # by model, for budgets in money
    rules: tuple[QuotaRule, ...] = ()  # of the tenant that are in force, whomever they match
    scope: Scope | None = None  # None: everything
    by_model: Mapping[str, "Grant"] = field(default_factory=dict)
    key_number: int = field(init=False)  # tells keys apart in ``verdict.turn_of``

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_number", crc32(self.key.key_hash.encode()))

    def for_model(self, model: str) -> "Grant":
        """What holds for an adapter's name holds also where it goes by its base's and its own."""
        if not self.by_model:
            return self
        return self.by_model.get(model) or self.by_model.get(own_name(model), self)


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    grants: Mapping[str, Grant]  # by key hash
    version: int = 0
    valid_until: datetime = _FOREVER


def snapshot_of(document: PolicyDocument, pepper: bytes, at: datetime) -> PolicySnapshot:
    grants: dict[str, Grant] = {}
    prices = {price.model: price for price in document.prices}
    views: _Views = {}
    for tenant in document.tenants:
        resolver = _Resolver(document, tenant, at, views)
        salt = tenant_salt(tenant.tenant_id, pepper)
        for key in tenant.keys:
            if not is_in_force(key, at):
                continue
            grant = resolver.grant(key, salt, prices)
            grants[key.key_hash] = grant
            for secret in key.retiring:
                if at < secret.expires_at:
                    grants[secret.key_hash] = grant
    return PolicySnapshot(grants, document.version, _valid_until(document, at))


def tenant_salt(tenant: TenantId, pepper: bytes) -> bytes:
    return hashlib.blake2b(
        tenant.encode(), key=pepper, person=_SALT_PERSON, digest_size=32
    ).digest()


class _Resolver:
    """One tenant's keys, at one moment."""

    def __init__(
        self, document: PolicyDocument, tenant: TenantPolicy, at: datetime, views: _Views
    ) -> None:
        self._document = document
        self._tenant = tenant
        self._at = at
        self._views = views
        self._rules = rules_of(document, tenant, at)
        organisation = document.organisation_of(tenant)
        of_organisation = () if organisation is None else organisation.terms
        self._models = {t.model for t in (*of_organisation, *tenant.terms)} - {None}
        self._keys_named = {terms.key_id for terms in tenant.terms}

    def grant(self, key: ApiKeyRecord, salt: bytes, prices: Mapping[str, ModelPrice]) -> Grant:
        def with_view(model: str | None, by_model: Mapping[str, Grant]) -> Grant:
            view = self._view(key, model)
            endpoints = None if key.endpoints is None else frozenset(key.endpoints)
            is_open = endpoints is None and view.allowed_models is None
            return Grant(
                self._tenant,
                key,
                view.limits,
                view.admission,
                salt,
                prices,
                self._rules,
                None if is_open else Scope(endpoints, view.allowed_models),
                by_model,
            )

        return with_view(None, {m: with_view(m, {}) for m in self._models if m is not None})

    def _view(self, key: ApiKeyRecord, model: str | None) -> View:
        tenant = self._tenant
        is_own = key.models is not None or key.key_id in self._keys_named
        said = (
            *(tenant.tier, tenant.organisation, tenant.tokens_per_minute),
            *(tenant.requests_per_minute, tenant.rules, tenant.admission, tenant.terms, model),
            (key.key_id, key.models) if is_own else None,
        )
        view = self._views.get(said)
        if view is None:
            statements = statements_about(
                self._document, tenant, key=key if is_own else None, model=model, at=self._at
            )
            view = self._views[said] = view_of(statements)
        return view


def _valid_until(document: PolicyDocument, at: datetime) -> datetime:
    """The next expiry; the next minute, where there are windows."""
    changes = [t for tenant in document.tenants for k in tenant.keys for t in _ends(k) if t > at]
    if any(_has_windows(document)):
        changes.append(at.replace(second=0, microsecond=0) + timedelta(minutes=1))
    return min(changes, default=_FOREVER)


def _ends(key: ApiKeyRecord) -> Iterator[datetime]:
    yield from (t for t in (key.expires_at, key.revoked_at) if t is not None)
    yield from (secret.expires_at for secret in key.retiring)


def _has_windows(document: PolicyDocument) -> Iterator[bool]:
    holders: list[OrganisationPolicy | TenantPolicy] = [*document.organisations, *document.tenants]
    for holder in holders:
        yield any(rule.window is not None for rule in holder.rules)
        yield any(terms.window is not None for terms in holder.terms)
