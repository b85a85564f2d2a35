"""What a policy document says of one key's requests to one model, at one moment, and why.

Four levels speak: tier, organisation, tenant, key.  On one level the statement about a model counts
before the general one, and one whose window is open before one without.  Between levels:

* limits of one request, and the two rates: the tenant's in place of its tier's, then the least of
  that, the organisation's and the key's;
* allowed models: those that every level allows which says anything;
* all else: the nearest to the key that says anything.

Rules count on their own; the organisation's tighten its tenants'.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from contracts.admission import AdmissionPolicy
from contracts.policy import ApiKeyRecord, Limits, PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule, own_name
from contracts.terms import Terms

RATES: Final = ("tokens_per_minute", "requests_per_minute")
COUNTED: Final = (
    *RATES, "concurrent_requests", "tokens_per_day", "tokens_per_month",
    "nano_usd_per_day", "nano_usd_per_month",
)  # fmt: skip
_NARROWED: Final = frozenset((*RATES, "max_prompt_tokens", "max_completion_tokens"))
_LIMITS: Final = frozenset(Limits.__struct_fields__)
_ADMISSION: Final = AdmissionPolicy.__struct_fields__
_SELECTORS: Final = frozenset(("key_id", "model", "window"))
_OWN: Final = (None, None, False)  # selects all of a tenant's requests

Values = Mapping[str, Any]  # by field; what a field holds is its own


class Level(enum.IntEnum):
    TIER = 0
    ORGANISATION = 1
    TENANT = 2
    KEY = 3


@dataclass(frozen=True, slots=True)
class Statement:
    level: Level
    by: str  # in words
    values: Values


@dataclass(frozen=True, slots=True)
class Settled:
    value: Any  # what the field holds
    because: str


@dataclass(frozen=True, slots=True)
class View:
    """Everything that applies; ``None`` for models: any."""

    limits: Limits
    admission: AdmissionPolicy
    allowed_models: frozenset[str] | None


def view_of(statements: Sequence[Statement]) -> View:
    def value(name: str) -> Any:  # what the field holds
        return settled(name, statements).value

    limits = {name: value(name) for name in Limits.__struct_fields__}
    limits["default_completion_tokens"] = min(
        limits["default_completion_tokens"], limits["max_completion_tokens"]
    )
    return View(
        Limits(**limits),
        AdmissionPolicy(**{name: value(name) for name in _ADMISSION}),
        cast(frozenset[str] | None, value("allowed_models")),
    )


def settled(name: str, statements: Sequence[Statement]) -> Settled:
    """``None`` where nobody says anything."""
    said: dict[Level, Statement] = {s.level: s for s in statements if name in s.values}  # the last
    if name == "allowed_models":
        return _allowed_by_all(said)
    if not said:
        return Settled(None, "")
    if name not in _NARROWED:
        nearest = said[max(said)]
        return Settled(nearest.values[name], nearest.by)
    base = said[Level.TENANT if Level.TENANT in said else Level.TIER]
    found = Settled(base.values[name], base.by)
    for level in (Level.ORGANISATION, Level.KEY):
        if level in said and said[level].values[name] < found.value:
            found = _narrowed(found, said[level].values[name], said[level].by)
    return found


def _narrowed(found: Settled, value: int, by: str) -> Settled:
    return Settled(value, f"{found.because}, narrowed by {by}" if found.because else by)


def _allowed_by_all(said: Mapping[Level, Statement]) -> Settled:
    if not said:
        return Settled(None, "")
    sets = [frozenset(said[level].values["allowed_models"]) for level in sorted(said)]
    words = ", narrowed by ".join(said[level].by for level in sorted(said))
    return Settled(frozenset.intersection(*sets), words)


# Who says what


def statements_about(
    document: PolicyDocument,
    tenant: TenantPolicy,
    *,
    key: ApiKeyRecord | None,
    model: str | None,
    at: datetime,
) -> list[Statement]:
    """Each level's from the general to the particular.  ``None``: any key, any model."""
    tier = document.tier(tenant.tier)
    organisation = document.organisation_of(tenant)
    of_organisation = () if organisation is None else organisation.terms
    model = _as_named(model, (*of_organisation, *tenant.terms))
    found = [
        Statement(
            Level.TIER,
            f"tier {tenant.tier}",
            {**_all_values(tier.limits), **_all_values(tier.admission)},
        )
    ]
    if organisation is not None:
        by = f"organisation {organisation.organisation_id}"
        found += _own_rates(Level.ORGANISATION, by, organisation.rules, at)
        found += _terms(Level.ORGANISATION, by, of_organisation, model, at)
    by = f"tenant {tenant.tenant_id}"
    own = {name: getattr(tenant, name) for name in RATES if getattr(tenant, name) is not None}
    if tenant.admission is not None:
        own |= _all_values(tenant.admission)
    found.append(Statement(Level.TENANT, by, own))
    found += _own_rates(Level.TENANT, by, tenant.rules, at)
    found += _terms(Level.TENANT, by, [t for t in tenant.terms if t.key_id is None], model, at)
    if key is not None:
        by = f"key {key.key_id}"
        if key.models is not None:
            found.append(Statement(Level.KEY, by, {"allowed_models": key.models}))
        of_key = [t for t in tenant.terms if t.key_id == key.key_id]
        found += _terms(Level.KEY, by, of_key, model, at)
    return found


def _as_named(model: str | None, terms: Iterable[Terms]) -> str | None:
    """What holds for an adapter's name holds also where it goes by its base's and its own.

    But for one whom any of ``terms`` names as it goes: those of its own name are not its then.
    """
    if model is None or ":" not in model or any(each.model == model for each in terms):
        return model
    return own_name(model)


def _all_values(struct: msgspec.Struct) -> dict[str, Any]:  # what the fields hold
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _own_rates(
    level: Level, by: str, rules: Iterable[QuotaRule], at: datetime
) -> Iterator[Statement]:
    for rule in in_force(rules, at):
        if rule.selector == _OWN:
            values = {n: getattr(rule, n) for n in RATES if getattr(rule, n) is not None}
            yield Statement(level, by + _when(rule), values)


def _terms(
    level: Level, by: str, statements: Iterable[Terms], model: str | None, at: datetime
) -> Iterator[Statement]:
    matching = [
        terms
        for terms in statements
        if terms.model in (None, model) and (terms.window is None or terms.window.is_open(at))
    ]
    for terms in sorted(matching, key=lambda t: (t.model is not None, t.window is not None)):
        of_model = "" if terms.model is None else f", model {terms.model}"
        yield Statement(level, by + of_model + _when(terms), stated(terms))


def stated(terms: Terms) -> Values:
    return {
        name: value for name, value in _all_values(terms).items()
        if value is not None and name not in _SELECTORS
    }  # fmt: skip


def _when(statement: QuotaRule | Terms) -> str:
    return "" if statement.window is None else f", {statement.window.words}"


# Rules


def in_force(rules: Iterable[QuotaRule], at: datetime) -> list[QuotaRule]:
    """One for each selector: an open window's goes before one without a window."""
    found: dict[tuple[object, ...], QuotaRule] = {}
    for rule in rules:
        if rule.window is None:
            found.setdefault(rule.selector, rule)
        elif rule.window.is_open(at):
            found[rule.selector] = rule
    return list(found.values())


def rules_of(document: PolicyDocument, tenant: TenantPolicy, at: datetime) -> tuple[QuotaRule, ...]:
    """All that hold for the tenant now: its own, as tight as its organisation's at least."""
    found = {rule.selector: rule for rule in in_force(tenant.rules, at)}
    organisation = document.organisation_of(tenant)
    for rule in () if organisation is None else in_force(organisation.rules, at):
        own = found.get(rule.selector)
        found[rule.selector] = rule if own is None else _tightest(own, rule)
    return tuple(found.values())


def _tightest(own: QuotaRule, other: QuotaRule) -> QuotaRule:
    least: dict[str, int] = {}
    for name in COUNTED:
        limits = [x for x in (getattr(own, name), getattr(other, name)) if x is not None]
        if limits:
            least[name] = min(limits)
    return msgspec.structs.replace(own, **least)
