"""``FIELD=VALUE`` of the command line, put where the policy document keeps that field."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_type_hints

import msgspec

from contracts.faults import schema_words
from contracts.policy import TenantPolicy
from contracts.quota import QuotaRule
from contracts.resolution import COUNTED, RATES
from contracts.terms import Terms
from pandal.errors import BadOption

_SELECTORS: Final = ("key_id", "model", "window")
_OF_TENANT: Final = ("tier", "organisation", "providers")
_OF_TERMS: Final = tuple(n for n in Terms.__struct_fields__ if n not in _SELECTORS)
_LISTS: Final = ("allowed_models", "providers")
_ELSE: Final = "; the rest by: pandal policy edit"

_NO_NAME: Final = re.compile(r"""[][(){}"'\s]""")  # what other notations put around names

_Values = dict[str, Any]  # by field; None: it is said no more


def assigned(
    tenant: TenantPolicy,
    assignments: Sequence[str],
    *,
    key: str | None,
    model: str | None,
    is_shadow: bool,
) -> TenantPolicy:
    """Raises BadOption."""
    if "" in (key, model):
        raise BadOption(f"{'--key' if key == '' else '--model'}: expected a name")
    is_own = key is None and model is None and not is_shadow
    own: _Values = {}
    counted: _Values = {}
    treated: _Values = {}
    for name, text in map(_parted, assignments):
        if name in _OF_TENANT or (name in RATES and is_own):
            if name in _OF_TENANT and not is_own:
                raise BadOption(f"{name}: holds for the whole tenant, not for a key or a model")
            own[name] = _value(TenantPolicy, name, text)
        elif name in COUNTED:
            counted[name] = _value(QuotaRule, name, text)
        elif name in _OF_TERMS and not is_shadow:
            treated[name] = _value(Terms, name, text)
        else:
            known = ", ".join((*_OF_TENANT, *COUNTED, *(() if is_shadow else _OF_TERMS)))
            raise BadOption(f"{name}: expected one of {known}{_ELSE}")
    tenant = msgspec.structs.replace(tenant, **own)
    if counted:
        tenant = _with_rule(
            tenant, QuotaRule(key_id=key, model=model, is_shadow=is_shadow), counted
        )
    return _with_terms(tenant, Terms(key_id=key, model=model), treated) if treated else tenant


def _parted(assignment: str) -> tuple[str, str]:
    name, is_there, text = assignment.partition("=")
    if not is_there:
        raise BadOption(f"expected FIELD=VALUE, got {assignment!r}")
    return name.strip(), text.strip()


def _value(holder: type[msgspec.Struct], name: str, text: str) -> Any:  # what the field holds
    if text == "":
        return () if name == "providers" else None
    given: object = text
    if name in _LISTS:
        given = _listed(name, text)
    type_ = get_type_hints(holder, include_extras=True)[name]
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as exc:
        raise BadOption(f"{name}: {schema_words(str(exc))}") from exc


def _listed(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or _NO_NAME.search(text):
        raise BadOption(f"{name}: expected NAME,NAME without brackets, quotes and blanks")
    return parts


def _with_rule(tenant: TenantPolicy, new: QuotaRule, values: Mapping[str, Any]) -> TenantPolicy:
    """The rule without a window is changed; without any limit left it is gone."""
    same = [r for r in tenant.rules if r.selector == new.selector and r.window is None]
    rule = msgspec.structs.replace(same[0] if same else new, **values)
    others = [other for other in tenant.rules if other not in same]
    is_empty = all(getattr(rule, name) is None for name in COUNTED)
    return msgspec.structs.replace(tenant, rules=(*others, *(() if is_empty else (rule,))))


def _with_terms(tenant: TenantPolicy, new: Terms, values: Mapping[str, Any]) -> TenantPolicy:
    def is_same(terms: Terms) -> bool:
        return (terms.key_id, terms.model, terms.window) == (new.key_id, new.model, None)

    same = [terms for terms in tenant.terms if is_same(terms)]
    changed = msgspec.structs.replace(same[0] if same else new, **values)
    others = [other for other in tenant.terms if other not in same]
    is_empty = all(getattr(changed, name) is None for name in _OF_TERMS)
    return msgspec.structs.replace(tenant, terms=(*others, *(() if is_empty else (changed,))))
