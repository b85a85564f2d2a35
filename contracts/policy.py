"""Who may ask for how much: written by operators, read by the gateway.

A ``PolicyDocument`` holds every tenant.  API keys are kept as keyed hashes: the document can
be read by anyone who may see limits without giving a key away.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated

import msgspec

from contracts.admission import ADMISSION_TIERS, AdmissionPolicy
from contracts.errors import UNDECODABLE, ContractError
from contracts.names import TenantId, tenant_id
from contracts.quota import Limit, ModelPrice, QuotaRule

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


class ApiKeyRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="api_key.v1"):
    key_id: str  # public: logs and events name a key by it
    key_hash: str  # hash_api_key(key, pepper)
    key_prefix: str  # the key's first characters, for recognition


class TenantPolicy(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tenant.policy.v1"
):
    """``None`` means "as the tier says"."""

    tenant_id: TenantId
    tier: str
    tokens_per_minute: Limit | None = None
    requests_per_minute: Limit | None = None
    keys: tuple[ApiKeyRecord, ...] = ()
    rules: tuple[QuotaRule, ...] = ()  # one for each pair of key and model, beside the two rates
    admission: AdmissionPolicy | None = None  # whole: in place of the tier's

    def admitted_by(self) -> AdmissionPolicy:
        return ADMISSION_TIERS[self.tier] if self.admission is None else self.admission

    def limits(self) -> Limits:
        """The tier's limits, narrowed or widened by the tenant's own."""
        tier = TIERS[self.tier]
        return msgspec.structs.replace(
            tier,
            tokens_per_minute=(
                tier.tokens_per_minute if self.tokens_per_minute is None else self.tokens_per_minute
            ),
            requests_per_minute=(
                tier.requests_per_minute
                if self.requests_per_minute is None
                else self.requests_per_minute
            ),
        )


class PolicyDocument(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="policy.document.v1"
):
    version: Annotated[int, msgspec.Meta(ge=0)]  # rises by one with each edit
    tenants: tuple[TenantPolicy, ...] = ()
    prices: tuple[ModelPrice, ...] = ()  # for budgets in money


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
        raise ContractError(f"policy document: {exc}") from exc
    _check(document)
    return document


def _check(document: PolicyDocument) -> None:
    tenants: set[str] = set()
    hashes: set[str] = set()
    priced: set[str] = set()
    for index, price in enumerate(document.prices):
        if price.model in priced:
            raise ContractError(
                f"policy document: $.prices[{index}].model: {price.model!r} stands twice"
            )
        priced.add(price.model)
    for index, policy in enumerate(document.tenants):
        where = f"policy document: $.tenants[{index}]"
        try:
            tenant_id(policy.tenant_id)
        except ContractError as exc:
            raise ContractError(f"{where}.tenant_id: {exc}") from exc
        if policy.tenant_id in tenants:
            raise ContractError(f"{where}.tenant_id: {policy.tenant_id!r} stands twice")
        tenants.add(policy.tenant_id)
        if policy.tier not in TIERS:
            raise ContractError(
                f"{where}.tier: expected one of {sorted(TIERS)}, got {policy.tier!r}"
            )
        for key in policy.keys:
            if key.key_hash in hashes:
                raise ContractError(f"{where}.keys: key {key.key_id!r} stands twice")
            hashes.add(key.key_hash)
        _check_rules(policy, where)


def _check_rules(policy: TenantPolicy, where: str) -> None:
    seen: set[tuple[str | None, str | None]] = set()
    for index, rule in enumerate(policy.rules):
        rule_at = f"{where}.rules[{index}]"
        if (rule.key_id, rule.model) in seen:
            raise ContractError(f"{rule_at}: key {rule.key_id!r}, model {rule.model!r} stand twice")
        seen.add((rule.key_id, rule.model))
        if rule.key_id is None and rule.model is None and _has_rates(rule):
            raise ContractError(
                f"{rule_at}: the rates of all requests are the tenant's own: "
                "set its tokens_per_minute and requests_per_minute"
            )


def _has_rates(rule: QuotaRule) -> bool:
    return rule.tokens_per_minute is not None or rule.requests_per_minute is not None
