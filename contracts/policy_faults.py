"""What is wrong with a policy document although each of its fields is well formed.

Every fault is told with its path, as in ``$.tenants[0].rules[2].window.zone``.
"""

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING

from contracts.errors import ContractError
from contracts.fallbacks import FallbackChain
from contracts.names import tenant_id
from contracts.quota import QuotaRule
from contracts.terms import Terms
from contracts.windows import TimeWindow, zone_of

if TYPE_CHECKING:
    from contracts.policy import OrganisationPolicy, PolicyDocument, TenantPolicy


def check_document(document: "PolicyDocument", tiers: Set[str]) -> None:
    """``tiers``: names that exist.  Raises ContractError."""
    _check_unique("tiers", "name", [tier.name for tier in document.tiers])
    _check_unique("prices", "model", [price.model for price in document.prices])
    organisations = [o.organisation_id for o in document.organisations]
    _check_unique("organisations", "organisation_id", organisations)
    _check_unique("tenants", "tenant_id", [t.tenant_id for t in document.tenants])
    for index, organisation in enumerate(document.organisations):
        _check_organisation(organisation, f"$.organisations[{index}]", tiers)
    hashes: set[str] = set()
    for index, tenant in enumerate(document.tenants):
        where = f"$.tenants[{index}]"
        _check_id(tenant.tenant_id, f"{where}.tenant_id")
        _check_tier(tenant.tier, where, tiers)
        if tenant.organisation is not None and tenant.organisation not in organisations:
            raise _fault(f"{where}.organisation", f"there is no {tenant.organisation!r}")
        _check_keys(tenant, where, hashes)
        _check_rules(tenant.rules, where)
        _check_terms(tenant.terms, where)
        _check_keys_exist(tenant, where)
        _check_fallbacks(tenant.fallbacks, where)


def _fault(path: str, words: str) -> ContractError:
    return ContractError(f"policy document: {path}: {words}")


def _check_unique(members: str, name: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise _fault(f"$.{members}[{index}].{name}", f"{value!r} stands twice")
        seen.add(value)


def _check_id(value: str, path: str) -> None:
    try:
        tenant_id(value)
    except ContractError as exc:
        raise _fault(path, str(exc)) from exc


def _check_fallbacks(chains: Sequence[FallbackChain], where: str) -> None:
    models = [chain.model for chain in chains]
    for index, chain in enumerate(chains):
        path = f"{where}.fallbacks[{index}]"
        if chain.model in models[:index]:
            raise _fault(f"{path}.model", f"{chain.model!r} stands twice")
        served_by = [step.priced_as for step in chain.steps]
        for number, name in enumerate(served_by):
            if name == chain.model or name in served_by[:number]:
                raise _fault(f"{path}.steps[{number}].model", f"{name!r} has been tried by then")


def _check_tier(tier: str, where: str, tiers: Set[str]) -> None:
    if tier not in tiers:
        raise _fault(f"{where}.tier", f"expected one of {sorted(tiers)}, got {tier!r}")


def _check_organisation(organisation: "OrganisationPolicy", where: str, tiers: Set[str]) -> None:
    _check_id(organisation.organisation_id, f"{where}.organisation_id")
    _check_rules(organisation.rules, where, may_have_rates=True)
    _check_terms(organisation.terms, where)
    statements: Sequence[QuotaRule | Terms] = (*organisation.rules, *organisation.terms)
    if any(statement.key_id is not None for statement in statements):
        raise _fault(where, "an organisation has no keys of its own: key_id is for tenants")


def _check_keys(tenant: "TenantPolicy", where: str, hashes: set[str]) -> None:
    ids: set[str] = set()
    for index, key in enumerate(tenant.keys):
        if key.key_id in ids:
            raise _fault(f"{where}.keys[{index}]", f"key {key.key_id!r} stands twice")
        ids.add(key.key_id)
        for key_hash in (key.key_hash, *(secret.key_hash for secret in key.retiring)):
            if key_hash in hashes:
                raise _fault(f"{where}.keys[{index}]", f"key {key.key_id!r} stands twice")
            hashes.add(key_hash)


def _check_keys_exist(tenant: "TenantPolicy", where: str) -> None:
    """Of terms; rules may outlive their keys, as yesterday's did."""
    known = {key.key_id for key in tenant.keys}
    for index, terms in enumerate(tenant.terms):
        if terms.key_id is not None and terms.key_id not in known:
            raise _fault(f"{where}.terms[{index}].key_id", f"there is no key {terms.key_id!r}")


def _check_rules(rules: Sequence[QuotaRule], where: str, *, may_have_rates: bool = False) -> None:
    windows: dict[tuple[object, ...], list[TimeWindow | None]] = {}
    for index, rule in enumerate(rules):
        rule_at = f"{where}.rules[{index}]"
        of_same = windows.setdefault(rule.selector, [])
        _check_window(rule.window, of_same, f"key {rule.key_id!r}, model {rule.model!r}", rule_at)
        is_tenants_own = rule.selector == (None, None, False) and rule.window is None
        if is_tenants_own and not may_have_rates and _has_rates(rule):
            raise _fault(
                rule_at,
                "the rates of all requests are the tenant's own: "
                "set its tokens_per_minute and requests_per_minute",
            )


def _check_terms(statements: Sequence[Terms], where: str) -> None:
    windows: dict[tuple[object, ...], list[TimeWindow | None]] = {}
    for index, terms in enumerate(statements):
        of_same = windows.setdefault((terms.key_id, terms.model), [])
        words = f"key {terms.key_id!r}, model {terms.model!r}"
        _check_window(terms.window, of_same, words, f"{where}.terms[{index}]")


def _check_window(
    window: TimeWindow | None, of_same: list[TimeWindow | None], words: str, path: str
) -> None:
    """``of_same``: those of the statements before that have the same key and model."""
    if window is None:
        if None in of_same:
            raise _fault(path, f"{words} stand twice")
    else:
        try:
            zone_of(window.zone)
        except ContractError as exc:
            raise _fault(f"{path}.window.zone", str(exc)) from exc
        if not window.days:
            raise _fault(f"{path}.window.days", "expected a day at least")
        for other in of_same:
            if other is not None and other.zone != window.zone:
                raise _fault(f"{path}.window.zone", f"{words} have a window in {other.zone}")
            if other is not None and window.overlaps(other):
                raise _fault(f"{path}.window", f"overlaps {other.words} of {words}")
    of_same.append(window)


def _has_rates(rule: QuotaRule) -> bool:
    return rule.tokens_per_minute is not None or rule.requests_per_minute is not None
