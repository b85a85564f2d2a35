"""Policies that are valid, and still not what anybody can want.  Pure."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from contracts.api_keys import is_in_force
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.resolution import COUNTED, RATES, View, rules_of, statements_about, view_of
from pandal.doctor.finding import Finding, fine, warning

_ABOUT: Final = "policies"
_SOON: Final = timedelta(days=7)
_LONG: Final = timedelta(days=30)


def policy_findings(
    document: PolicyDocument,
    *,
    at: datetime,
    served: Collection[str] | None,
    last_used: Mapping[str, datetime],
) -> Iterator[Finding]:
    """``served``: models that replicas tell; ``None``: nobody could be asked."""
    found = [
        finding
        for tenant in document.tenants
        for finding in _of_tenant(document, tenant, at, served, last_used)
    ]
    yield from found
    if not document.tenants:
        yield warning(_ABOUT, "there is no tenant", "pandal keys create --tenant NAME")
    elif not found:
        num = len(document.tenants)
        yield fine(_ABOUT, f"{num} {'tenant' if num == 1 else 'tenants'}, nothing wrong with them")


def _of_tenant(
    document: PolicyDocument,
    tenant: TenantPolicy,
    at: datetime,
    served: Collection[str] | None,
    last_used: Mapping[str, datetime],
) -> Iterator[Finding]:
    statements = statements_about(document, tenant, key=None, model=None, at=at)
    view, rules = view_of(statements), rules_of(document, tenant, at)
    yield from _keys(tenant, at, last_used)
    yield from unsatisfiable(tenant, view, rules)
    yield from _without_effect(tenant, view, rules)
    yield from _allowed_models(document, tenant, at, served)
    yield from _names(tenant, served)
    yield from _unpriced(document, tenant, rules, served)


def _keys(
    tenant: TenantPolicy, at: datetime, last_used: Mapping[str, datetime]
) -> Iterator[Finding]:
    name = tenant.tenant_id
    good = [key for key in tenant.keys if is_in_force(key, at)]
    if not good:
        yield warning(_ABOUT, f"{name} has no valid key", f"pandal keys create --tenant {name}")
    for key in good:
        if key.expires_at is not None and key.expires_at - at <= _SOON:
            yield warning(
                _ABOUT,
                f"{name}: key {key.key_id} expires at {key.expires_at:%Y-%m-%d %H:%M}Z",
                "give its owner another one in time",
            )
        if _is_unused(key, at, last_used):
            yield warning(
                _ABOUT,
                f"{name}: key {key.key_id} was not used for {_LONG.days} days",
                f"pandal keys revoke {key.key_id} --tenant {name}, if nobody misses it",
            )


def _is_unused(key: ApiKeyRecord, at: datetime, last_used: Mapping[str, datetime]) -> bool:
    """As far as anybody noted it."""
    if not last_used or key.created_at is None:
        return False
    return at - last_used.get(key.key_id, key.created_at) > _LONG


def unsatisfiable(
    tenant: TenantPolicy, view: View, rules: tuple[QuotaRule, ...]
) -> Iterator[Finding]:
    """A request that names no max_tokens needs the default, and one token of a prompt."""
    needs = view.limits.default_completion_tokens + 1
    limits = [("tokens_per_minute", view.limits.tokens_per_minute, "its tier or tenant")]
    for rule in rules:
        for name in ("tokens_per_minute", "tokens_per_day", "tokens_per_month"):
            value = getattr(rule, name)
            if value is not None and not rule.is_shadow:
                limits.append((name, value, _words(rule)))
    for name, value, where in limits:
        if value < needs:
            yield warning(
                _ABOUT,
                f"{tenant.tenant_id}: {name} {value:,} ({where}) is less than a request needs "
                f"that names no max_tokens ({needs:,}): each is refused",
                f"raise it, or lower default_completion_tokens "
                f"({view.limits.default_completion_tokens:,})",
            )


def _without_effect(
    tenant: TenantPolicy, view: View, rules: tuple[QuotaRule, ...]
) -> Iterator[Finding]:
    """What is never reached, because something tighter always is."""
    own = {name: getattr(view.limits, name) for name in RATES}
    whole = next((r for r in rules if r.selector == (None, None, False)), None)
    for name in COUNTED:
        value = None if whole is None else getattr(whole, name)
        if name not in RATES and value is not None:
            own[name] = value
    for rule in rules:
        if rule.selector == (None, None, False):
            continue
        for name, bound in own.items():
            value = getattr(rule, name)
            if value is not None and value >= bound:
                yield warning(
                    _ABOUT,
                    f"{tenant.tenant_id}: {name} {value:,} ({_words(rule)}) is never reached: "
                    f"all its requests together have {bound:,}",
                    "lower it, or take it away",
                )
    for rule in rules:
        for day, month in (
            ("tokens_per_day", "tokens_per_month"),
            ("nano_usd_per_day", "nano_usd_per_month"),
        ):
            a_day, a_month = getattr(rule, day), getattr(rule, month)
            if a_day is not None and a_month is not None and a_day >= a_month:
                yield warning(
                    _ABOUT,
                    f"{tenant.tenant_id}: {day} {a_day:,} ({_words(rule)}) is never reached: "
                    f"a month has {a_month:,}",
                    "lower it, or take it away",
                )


def _allowed_models(
    document: PolicyDocument, tenant: TenantPolicy, at: datetime, served: Collection[str] | None
) -> Iterator[Finding]:
    for key in tenant.keys:
        if not is_in_force(key, at):
            continue
        allowed = view_of(
            statements_about(document, tenant, key=key, model=None, at=at)
        ).allowed_models
        if allowed is not None and not allowed:
            yield warning(
                _ABOUT,
                f"{tenant.tenant_id}: key {key.key_id} may use no model at all: what its levels "
                "allow has nothing in common",
                f"pandal policy explain {tenant.tenant_id} --key {key.key_id}",
            )
        elif allowed is not None and served is not None and not allowed & set(served):
            yield warning(
                _ABOUT,
                f"{tenant.tenant_id}: key {key.key_id} may use only models that nobody serves: "
                f"{', '.join(sorted(allowed))}",
                "allow one that is served, or serve one",
            )


def _names(tenant: TenantPolicy, served: Collection[str] | None) -> Iterator[Finding]:
    keys = {key.key_id for key in tenant.keys}
    for rule in tenant.rules:
        if rule.key_id is not None and rule.key_id not in keys:
            yield warning(
                _ABOUT, f"{tenant.tenant_id}: a rule is for key {rule.key_id}, which is not there",
                "take the rule away",
            )  # fmt: skip
    models = {rule.model for rule in tenant.rules if rule.model is not None}
    models |= {terms.model for terms in tenant.terms if terms.model is not None}
    models |= {chain.model for chain in tenant.fallbacks}
    for model in sorted(models - set(served)) if served is not None else ():
        yield warning(
            _ABOUT, f"{tenant.tenant_id}: it names model {model}, which nobody serves",
            "spell it as replicas do (GET /v1/models), or take it away",
        )  # fmt: skip


def _unpriced(
    document: PolicyDocument,
    tenant: TenantPolicy,
    rules: tuple[QuotaRule, ...],
    served: Collection[str] | None,
) -> Iterator[Finding]:
    priced = {price.model for price in document.prices}
    for model in sorted(served or ()):
        holds = any(
            r.has_money_budget and not r.is_shadow and r.model in (None, model) for r in rules
        )
        if holds and model not in priced:
            yield warning(
                _ABOUT,
                f"{tenant.tenant_id}: a budget in money holds for model {model}, which has no "
                "price: its requests are refused",
                "add its price to 'prices' (pandal policy edit)",
            )


def _words(rule: QuotaRule) -> str:
    parts = [f"key {rule.key_id}"] if rule.key_id is not None else []
    parts += [f"model {rule.model}"] if rule.model is not None else []
    parts += ["in shadow"] if rule.is_shadow else []
    return ", ".join(parts) or "all requests"
