"""The quota's spend counters, brought to what the ledger knows after the store has lost them.

Budgets are enforced where requests are admitted, by counters that reserve before anything is spent.
A store that lost them begins at nothing, and would let a month be spent again.  That it did is
certain: beside each tenant's counters stands a mark of when they were last brought up, and it is
lost with them.  Only then they are raised, never lowered, and for as long after as what was running
takes to be posted.  At other times they differ from the ledger by right: a request counts in the
day that admitted it, in the ledger in the one it ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from typing import Any, Final

from sqlalchemy import Connection, func, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import daily_usage, joined_pico_usd
from billing.money import nano_usd_up
from billing.pricing import TokenClass
from billing.quota_store import quota_store
from contracts.names import TenantId, quota_budget_key, quota_rule_name, tenant_id
from contracts.policy import PolicyDocument, TenantPolicy
from contracts.quota import QuotaRule
from contracts.resolution import rules_of, statements_about, view_of

_MARK: Final = "ledger"  # no rule's field is called that
_GRACE_S: Final = 600  # longer than what ran when the store was lost takes to be posted
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _Spent:
    tokens: int
    nano_usd: int


def raise_counters(
    ledger: LedgerRef, quota_url: str, policies: PolicyDocument, *, now: datetime
) -> int:
    """How many were too low.  Raises LedgerMissing, LedgerUnavailable, QuotaStoreUnavailable."""
    budgets = [
        (policy, rules)
        for policy in policies.tenants
        if (rules := [rule for rule in rules_of(policies, policy, now) if rule.has_budget])
    ]
    script = resources.files("billing").joinpath("lua", "raise_budgets.lua").read_text("utf-8")
    num_raised = 0
    with quota_store(quota_url) as store:
        lost, store_s = _lost(store, [policy.tenant_id for policy, _ in budgets])
        if not lost:
            return 0
        with reading(ledger) as connection:
            calls = [
                (policy.tenant_id, list(_arguments(spending, rules)))
                for policy, rules in budgets
                if policy.tenant_id in lost
                for spending in [_Spending(connection, policies, policy, now)]
            ]
        for name, arguments in calls:
            key = quota_budget_key(tenant_id(name))
            num_raised += store.eval(script, 1, key, store_s, *arguments)
    return num_raised


def _lost(store: Any, tenants: Sequence[TenantId]) -> tuple[set[TenantId], int]:  # Any: a client
    """(those whose counters are not known to be whole, the store's time in seconds)."""
    pipeline = store.pipeline(transaction=False)
    pipeline.time()
    for name in tenants:
        pipeline.hget(quota_budget_key(name), _MARK)
    (store_s, _), *marks = pipeline.execute()
    lost = {
        name
        for name, mark in zip(tenants, marks, strict=True)
        if mark is None or store_s < int(mark) + _GRACE_S
    }
    return lost, int(store_s)


def _arguments(spending: "_Spending", rules: Sequence[QuotaRule]) -> Iterator[str | int]:
    today = spending.now.astimezone(UTC).date()
    yield (today - _EPOCH).days
    yield today.year * 12 + today.month - 1  # as the scripts count months
    for rule in rules:
        yield quota_rule_name(rule.key_id, rule.model, is_shadow=rule.is_shadow)
        for days in (1, today.day):
            spent = spending.of(rule, num_days=days)
            yield from (spent.tokens, spent.nano_usd)


@dataclass(frozen=True, slots=True)
class _Spending:
    connection: Connection
    policies: PolicyDocument
    policy: TenantPolicy
    now: datetime

    def of(self, rule: QuotaRule, *, num_days: int) -> _Spent:
        """Of the days up to today, a cached token by what the tenant's policy makes it count."""
        columns = daily_usage.c
        last = (self.now.astimezone(UTC).date() - _EPOCH).days
        sums = [func.sum(columns[f"{c.value}_tokens"]) for c in TokenClass]
        query = (
            select(
                *(columns.key_id, columns.model),
                *(func.sum(columns.micro_usd), func.sum(columns.rest_pico_usd)),
                *sums,
            )
            .where(columns.tenant_id == self.policy.tenant_id)
            .where(columns.day.between(last - num_days + 1, last))
            .group_by(columns.key_id, columns.model)
        )
        tokens = pico_usd = 0
        for key_id, model, micro_usd, rest, *counts in self.connection.execute(query):
            if rule.matches(key_id, model):
                cached = int(counts[_CACHED])
                forgiven = int(cached * (1.0 - self._cached_token_weight(key_id, model)))
                tokens += sum(map(int, counts)) - forgiven
                pico_usd += joined_pico_usd(micro_usd, rest)
        return _Spent(tokens, nano_usd_up(pico_usd))

    def _cached_token_weight(self, key_id: str, model: str) -> float:
        key = next((key for key in self.policy.keys if key.key_id == key_id), None)
        said = statements_about(self.policies, self.policy, key=key, model=model, at=self.now)
        return view_of(said).admission.cached_token_weight


_CACHED: Final = list(TokenClass).index(TokenClass.INPUT_CACHE_READ)
