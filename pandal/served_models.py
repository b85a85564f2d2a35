"""Models and providers that a policy names and nobody serves or has: told, and not refused.

One may be served later, or by another fleet.  But an alias, or a misspelt name, is a rule without
effect.
"""

import sys
from collections.abc import Collection, Iterator, Sequence, Set
from pathlib import Path

from contracts.policy import PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.terms import Terms
from pandal.datadir import DataDir
from pandal.doctor.replicas import examine
from pandal.fleet_record import running_fleet
from pandal.options import directory
from pandal.plan import DEFAULT_ALIAS
from pandal.policy_options import admin_client
from pandal.screen import say


def models_named(document: PolicyDocument) -> Collection[str]:
    """Wherever something is said of a model."""
    found = {model for tenant in document.tenants for model in _named_by(tenant)}
    for organisation in document.organisations:
        found.update(_said_of(organisation.rules, organisation.terms))
    return found


def providers_named(document: PolicyDocument) -> Collection[str]:
    """Those that are permitted, and those of chains."""
    found = {name for tenant in document.tenants for name in tenant.providers}
    chains = (chain for tenant in document.tenants for chain in tenant.fallbacks)
    steps = (step.provider for chain in chains for step in chain.steps)
    return found | {name for name in steps if name is not None}


def behind_alias(model: str, data_dir: Path | None, admin: str | None) -> str:
    """What the local fleet's gateway takes ``model`` for before it looks at any rule."""
    if model != DEFAULT_ALIAS or admin_client(data_dir, admin) is not None:
        return model
    fleet = running_fleet(directory(data_dir))
    return model if fleet is None else fleet.model


def warn_of_unserved(models: Collection[str], data_dir: Path | None, admin: str | None) -> None:
    """On standard error, as far as the local fleet is meant and its replicas tell."""
    if not models or admin_client(data_dir, admin) is not None:
        return
    served = _served(directory(data_dir))
    for model in sorted(set(models) - served) if served else ():
        names = ", ".join(sorted(served))
        say(f"pandal: warning: no replica serves {model!r}; served: {names}", sys.stderr)


def warn_of_unknown(providers: Collection[str], data_dir: Path | None, admin: str | None) -> None:
    """As ``warn_of_unserved``, of what the local fleet's gateway was started with."""
    if not providers or admin_client(data_dir, admin) is not None:
        return
    fleet = running_fleet(directory(data_dir))
    known = None if fleet is None else fleet.providers
    for name in sorted(set(providers) - set(known)) if known is not None else ():
        names = ", ".join(sorted(known or ())) or "none"
        say(f"pandal: warning: the gateway has no provider {name!r}; it has: {names}", sys.stderr)


def _named_by(tenant: TenantPolicy) -> Iterator[str]:
    yield from _said_of(tenant.rules, tenant.terms)
    for terms in tenant.terms:
        yield from terms.allowed_models or ()
    for chain in tenant.fallbacks:
        yield chain.model
    for key in tenant.keys:
        yield from key.models or ()


def _said_of(rules: Sequence[QuotaRule], terms: Sequence[Terms]) -> Iterator[str]:
    yield from (rule.model for rule in rules if rule.model is not None)
    yield from (each.model for each in terms if each.model is not None)


def _served(data_dir: DataDir) -> Set[str]:
    fleet = running_fleet(data_dir)
    examined = [] if fleet is None else examine(fleet.replica_urls)
    return {model for each in examined for model in each.models}
