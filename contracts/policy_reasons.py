"""A resolved policy in words: each value, and whose word it is."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from contracts.policy import ApiKeyRecord, Limits, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule, usd_of_nano
from contracts.resolution import (
    COUNTED,
    Settled,
    Statement,
    in_force,
    rules_of,
    settled,
    statements_about,
    view_of,
)

_UNITS: Final = {
    "tokens_per_minute": "TPM",
    "requests_per_minute": "RPM",
    "concurrent_requests": "concurrent requests",
    "tokens_per_day": "tokens a day",
    "tokens_per_month": "tokens a month",
    "nano_usd_per_day": "USD a day",
    "nano_usd_per_month": "USD a month",
}
_UNSAID: Final = {"allowed_models": "any", "max_prompt_tokens": "as the model allows"}  # else none


class Reason(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="policy.reason.v1"):
    field: str
    value: Any  # JSON: a number, a name, a list, or null
    because: str

    @property
    def words(self) -> str:
        """As in: 20,000 TPM because tier gold, narrowed by key k1."""
        because = f" because {self.because}" if self.because else ""
        if self.field in _UNITS:
            is_money = self.field.startswith("nano_usd")
            amount = usd_of_nano(self.value) if is_money else f"{self.value:,}"
            return f"{amount} {_UNITS[self.field]}{because}"
        value = f"{self.value:,}" if type(self.value) is int else _plain(self.field, self.value)
        return f"{self.field.replace('_', ' ')} {value}{because}"


def reasons(
    document: PolicyDocument,
    tenant: TenantPolicy,
    *,
    key: ApiKeyRecord | None,
    model: str | None,
    at: datetime,
) -> Iterator[Reason]:
    """Of all that applies to the key's requests to the model; ``None``: any."""
    statements = statements_about(document, tenant, key=key, model=model, at=at)
    view = view_of(statements)
    rules = _rules_with_words(document, tenant, key, model, at)
    for name in COUNTED:
        yield from _of_counted(name, statements, rules)
    values = {**_fields(view.limits), **_fields(view.admission)}
    values["allowed_models"] = view.allowed_models
    if key is not None and key.endpoints is not None:
        yield _reason("endpoints", Settled(key.endpoints, f"key {key.key_id}"))
    for name, value in values.items():
        if name not in COUNTED:
            yield _reason(name, Settled(value, settled(name, statements).because))
    because = f"tenant {tenant.tenant_id}" if tenant.providers else ""
    yield _reason("providers", Settled(tenant.providers, because))


def _fields(struct: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _of_counted(
    name: str, statements: list[Statement], rules: list[tuple[QuotaRule, str]]
) -> Iterator[Reason]:
    found = settled(name, statements) if name in Limits.__struct_fields__ else Settled(None, "")
    for rule, words in rules:
        value = getattr(rule, name)
        if value is None:
            continue
        if rule.is_shadow:
            yield _reason(name, Settled(value, f"{words}, in shadow: refuses nothing"))
        elif found.value is None:
            found = Settled(value, words)
        elif value < found.value:
            found = Settled(value, f"{found.because}, narrowed by {words}")
    if found.value is not None:
        yield _reason(name, found)


def _rules_with_words(
    document: PolicyDocument,
    tenant: TenantPolicy,
    key: ApiKeyRecord | None,
    model: str | None,
    at: datetime,
) -> list[tuple[QuotaRule, str]]:
    organisation = document.organisation_of(tenant)
    of_organisation = () if organisation is None else in_force(organisation.rules, at)
    own = {rule.selector for rule in in_force(tenant.rules, at)}
    found = []
    for rule in rules_of(document, tenant, at):
        if not rule.matches(None if key is None else key.key_id, model):
            continue
        by = "" if rule.selector in own else f"organisation {tenant.organisation}, "
        if rule.selector in own and any(rule.selector == o.selector for o in of_organisation):
            by = f"tenant {tenant.tenant_id} and organisation {tenant.organisation}, "
        found.append((rule, (by + _selection(rule, tenant)).removesuffix(", ")))
    return found


def _selection(rule: QuotaRule, tenant: TenantPolicy) -> str:
    parts = []
    if rule.key_id is not None:
        parts.append(f"key {rule.key_id}")
    if rule.model is not None:
        parts.append(f"model {rule.model}")
    if rule.window is not None:
        parts.append(rule.window.words)
    return ", ".join(parts) or f"tenant {tenant.tenant_id}"


def _reason(name: str, found: Settled) -> Reason:
    value = sorted(found.value) if isinstance(found.value, frozenset) else found.value
    plain = list(value) if isinstance(value, tuple) else value
    return Reason(field=name, value=plain, because=found.because)


def _plain(field: str, value: object) -> str:
    if value is None:
        return _UNSAID.get(field, "none")
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
