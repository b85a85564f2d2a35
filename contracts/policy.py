"""Who may ask for how much: written by operators, read by the gateway.

A ``PolicyDocument`` holds every tenant.  API keys are kept as keyed hashes: the document can
be read by anyone who may see limits without giving a key away.

What applies to one key's requests to one model follows from it by ``contracts.resolution``.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

import msgspec

from contracts.admission import ADMISSION_TIERS, AdmissionPolicy
from contracts.errors import UNDECODABLE, ContractError
from contracts.fallbacks import FallbackChain
from contracts.faults import schema_words
from contracts.hedging import HedgePolicy
from contracts.names import TenantId
from contracts.policy_faults import check_document
from contracts.quota import Limit, ModelPrice, QuotaRule
from contracts.response_cache import CachePolicy
from contracts.terms import Models, Terms
from contracts.usage import Endpoint, OutputCharge, UtcDatetime

_HASH_BYTES = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="limits.v1"):
    tokens_per_minute: Limit  # also the burst: a full bucket holds one minute
    requests_per_minute: Limit
    default_completion_tokens: Limit  # for requests that name no max_tokens
    max_completion_tokens: Limit  # a request that asks for more is refused with 400


TIERS: Mapping[str, Limits] = {
    "free": Limits(
        tokens_per_minute=10_000,
        requests_per_minute=30,
        default_completion_tokens=256,
        max_completion_tokens=1_024,
    ),
    "standard": Limits(
        tokens_per_minute=60_000,
        requests_per_minute=300,
        default_completion_tokens=512,
        max_completion_tokens=4_096,
    ),
    "gold": Limits(
        tokens_per_minute=600_000,
        requests_per_minute=3_000,
        default_completion_tokens=1_024,
        max_completion_tokens=8_192,
    ),
}


class Tier(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tier.v1", omit_defaults=True
):
    """One of the operator's own, or in place of a built-in one."""

    name: str
    limits: Limits
    admission: AdmissionPolicy = AdmissionPolicy()


class RetiringSecret(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="api_key.retiring.v1"
):
    """What a key was before its rotation: the same key until it expires."""

    key_hash: str
    key_prefix: str
    expires_at: UtcDatetime


class ApiKeyRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="api_key.v1",
    omit_defaults=True,
):
    """``None`` for a scope: whatever its tenant may."""

    key_id: str  # public: logs and events name a key by it, also after a rotation
    key_hash: str  # hash_api_key(key, pepper)
    key_prefix: str  # the key's first characters, for recognition
    name: str = ""  # what people call it
    created_at: UtcDatetime | None = None
    expires_at: UtcDatetime | None = None  # None: never
    revoked_at: UtcDatetime | None = None  # from then on it is nobody's
    models: Models | None = None  # as replicas call them
    endpoints: tuple[Endpoint, ...] | None = None
    retiring: tuple[RetiringSecret, ...] = ()


class OrganisationPolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="organisation.policy.v1",
    omit_defaults=True,
):
    """What holds for each of its tenants, each counted by itself: a ceiling, not a pool."""

    organisation_id: str  # spelled as tenant ids are
    rules: tuple[QuotaRule, ...] = ()  # the tighter of this and the tenant's counts
    terms: tuple[Terms, ...] = ()


class TenantPolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="tenant.policy.v1",
    omit_defaults=True,
):
    """``None`` means "as the tier says"."""

    tenant_id: TenantId
    tier: str
    organisation: str | None = None
    tokens_per_minute: Limit | None = None
    requests_per_minute: Limit | None = None
    keys: tuple[ApiKeyRecord, ...] = ()
    rules: tuple[QuotaRule, ...] = ()  # one for each pair of key and model, beside the two rates
    admission: AdmissionPolicy | None = None  # whole: in place of the tier's
    terms: tuple[Terms, ...] = ()  # one by one: each field of it in place of the tier's
    output_charge: OutputCharge = OutputCharge.GENERATED  # of answers that did not end well
    fallbacks: tuple[FallbackChain, ...] = ()  # one a model
    cache: CachePolicy | None = None  # None: no answer is kept
    hedging: HedgePolicy | None = None  # None: nothing is asked for twice at once
    providers: tuple[str, ...] = ()  # who may serve beside our own replicas, where they can


class PolicyDocument(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="policy.document.v1",
    omit_defaults=True,
    dict=True,  # for the index
):
    version: Annotated[int, msgspec.Meta(ge=0)]  # rises by one with each edit
    tiers: tuple[Tier, ...] = ()
    organisations: tuple[OrganisationPolicy, ...] = ()
    tenants: tuple[TenantPolicy, ...] = ()
    prices: tuple[ModelPrice, ...] = ()  # for budgets in money

    def tier(self, name: str) -> Tier:
        """The operator's own, or a built-in one.  Raises KeyError."""
        for own in self.tiers:
            if own.name == name:
                return own
        return Tier(name=name, limits=TIERS[name], admission=ADMISSION_TIERS[name])

    def organisation_of(self, tenant: TenantPolicy) -> OrganisationPolicy | None:
        name = tenant.organisation
        return None if name is None else self._organisations.get(name)

    @cached_property
    def _organisations(self) -> Mapping[str, OrganisationPolicy]:
        return {o.organisation_id: o for o in self.organisations}


def hash_api_key(api_key: bytes, pepper: bytes) -> str:
    """BLAKE2b keyed with ``pepper`` (RFC 7693).  ``pepper`` is 16 to 64 secret bytes."""
    if not 16 <= len(pepper) <= 64:
        raise ValueError(f"pepper must hold 16 to 64 bytes, got {len(pepper)}")
    return hashlib.blake2b(api_key, key=pepper, digest_size=_HASH_BYTES).hexdigest()


_decoder = msgspec.json.Decoder(PolicyDocument)


def encode_policy_document(document: PolicyDocument) -> bytes:
    """Indented JSON: people read and edit it."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode_policy_document(payload: bytes) -> PolicyDocument:
    """Raises ContractError, naming the path of the fault."""
    try:
        document = _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise ContractError(f"policy document: {schema_words(str(exc))}") from exc
    check_document(document, {tier.name for tier in document.tiers} | TIERS.keys())
    return document
