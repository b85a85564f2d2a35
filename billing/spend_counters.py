"""The quota's spend counters, raised to what the ledger knows after the store has lost them.

Budgets are enforced where requests are admitted, by counters that reserve before anything is spent.
A store that lost them begins at nothing, and would let a month be spent again.  Raising them to the
ledger's sums is safe at any time and however often: none is lowered, so what runs or is not posted
yet, which only the store knows, stays.  What was running when the store was lost is missing until
it is posted: seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from typing import Final

from sqlalchemy import Connection, func, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import daily_usage, joined_pico_usd
from billing.pricing import TokenClass
from billing.quota_store import quota_store
from contracts.names import quota_budget_key, quota_rule_name, tenant_id
from contracts.policy import PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.resolution import rules_of

_PICO_PER_NANO: Final = 1_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _Spent:
    tokens: int
    nano_usd: int


def raise_counters(
    ledger: LedgerRef, quota_url: str, policies: PolicyDocument, *, now: datetime
) -> int:
    """How many were too low.  Raises LedgerMissing, LedgerUnavailable, QuotaStoreUnavailable."""
    today = now.astimezone(UTC).date()
    script = resources.files("billing").joinpath("lua", "raise_budgets.lua").read_text("utf-8")
    with reading(ledger) as connection:
        calls = [
            (policy.tenant_id, list(_arguments(connection, policy, rules, today)))
            for policy in policies.tenants
            if (rules := [rule for rule in rules_of(policies, policy, now) if rule.has_budget])
        ]
    num_raised = 0
    with quota_store(quota_url) as store:
        for name, arguments in calls:
            num_raised += store.eval(script, 1, quota_budget_key(tenant_id(name)), *arguments)
    return num_raised


def _arguments(
    connection: Connection, policy: TenantPolicy, rules: Sequence[QuotaRule], today: date
) -> Iterator[str | int]:
    yield (today - _EPOCH).days
    yield today.year * 12 + today.month - 1  # as the scripts count months
    for rule in rules:
        yield quota_rule_name(rule.key_id, rule.model)
        for first in (today, today.replace(day=1)):
            spent = _spent(connection, policy, rule, first=first, last=today)
            yield from (spent.tokens, spent.nano_usd)


def _spent(
    connection: Connection, policy: TenantPolicy, rule: QuotaRule, *, first: date, last: date
) -> _Spent:
    """Of the days ``first`` to ``last``.  A cached token counts in full: more than for a quota
    that forgives a part of it, never less."""
    columns = daily_usage.c
    matching = [
        columns.tenant_id == policy.tenant_id,
        columns.day >= (first - _EPOCH).days,
        columns.day <= (last - _EPOCH).days,
    ]
    if rule.key_id is not None:
        matching.append(columns.key_id == rule.key_id)
    if rule.model is not None:
        matching.append(columns.model == rule.model)
    sums = [func.coalesce(func.sum(columns[f"{c.value}_tokens"]), 0) for c in TokenClass]
    money = [func.coalesce(func.sum(columns[c]), 0) for c in ("micro_usd", "rest_pico_usd")]
    *tokens, micro_usd, rest = connection.execute(select(*sums, *money).where(*matching)).one()
    nano_usd = -(-joined_pico_usd(micro_usd, rest) // _PICO_PER_NANO)
    return _Spent(sum(map(int, tokens)), nano_usd)
