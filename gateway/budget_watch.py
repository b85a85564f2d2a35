"""How much of their budgets those tenants have spent whose metrics an operator asked for.

Read from the quota store, which decides by the same counters; between two looks it may be old.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from contracts import metrics as names
from contracts.names import TenantId, quota_budget_key, quota_rule_name
from contracts.quota import QuotaRule
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import pack
from gateway.errors import QuotaUnavailable
from gateway.grants import PolicySnapshot
from gateway.label_text import rule_label

_LOOK_S: Final = 5.0  # scrapers look less often
_DAY_S: Final = 86_400
_BUDGETS: Final = {  # by their fields' names: the letter of their period, and what is counted
    "tokens_per_day": ("d", "tokens"),
    "tokens_per_month": ("m", "tokens"),
    "nano_usd_per_day": ("d", "nano"),
    "nano_usd_per_month": ("m", "nano"),
}
_Series = tuple[str, str, str]  # tenant, label of the rule, name of the budget


@dataclass(frozen=True, slots=True)
class _Budget:
    rule: QuotaRule
    name: str  # of the rule's field
    limit: int

    def counter(self, now_s: float) -> str:
        """As budgets.lua spells it."""
        period, unit = _BUDGETS[self.name]
        number = int(now_s // _DAY_S) if period == "d" else _month(now_s)
        return f"{quota_rule_name(self.rule.key_id, self.rule.model)}{period}{number}{unit}"


class BudgetWatch:
    def __init__(
        self,
        store: QuotaStore,
        snapshot: Callable[[], PolicySnapshot | None],
        tenants: Collection[str],
        wall_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._tenants = frozenset(tenants)
        self._wall_s = wall_s
        self._seen: PolicySnapshot | None = None
        self._budgets: Mapping[TenantId, Sequence[_Budget]] = {}
        self._used: Mapping[_Series, float] = {}

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """A store that is away tells nothing: no old number stands for it."""
        snapshot = self._snapshot()
        if snapshot is not None and snapshot is not self._seen:
            self._seen, self._budgets = snapshot, self._budgets_in(snapshot)
        try:
            self._used = {
                (tenant, rule_label(budget.rule), budget.name): used
                for tenant, budgets in self._budgets.items()
                for budget, used in await self._used_of(tenant, budgets)
            }
        except QuotaUnavailable:
            self._used = {}

    def render(self) -> str:
        """In Prometheus' text format."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        name = names.GATEWAY_TENANT_BUDGET_USED
        if self._used:
            yield f"# TYPE {name} gauge"
        for (tenant, rule, budget), ratio in sorted(self._used.items()):
            yield f'{name}{{tenant="{tenant}",rule="{rule}",budget="{budget}"}} {ratio:f}'

    def _budgets_in(self, snapshot: PolicySnapshot) -> Mapping[TenantId, Sequence[_Budget]]:
        rules = {
            grant.tenant.tenant_id: grant.rules
            for grant in snapshot.grants.values()
            if grant.tenant.tenant_id in self._tenants
        }
        return {tenant: list(_budgets_of(found)) for tenant, found in rules.items()}

    async def _used_of(
        self, tenant: TenantId, budgets: Sequence[_Budget]
    ) -> Sequence[tuple[_Budget, float]]:
        if not budgets:
            return ()
        now_s = self._wall_s()
        counters = [budget.counter(now_s) for budget in budgets]
        command = pack("HMGET", quota_budget_key(tenant), *counters)
        spent = await self._store.call(command, slot_of(tenant))
        if not isinstance(spent, list):
            raise QuotaUnavailable("The quota store answered something else.")
        return [(b, int(s or 0) / b.limit) for b, s in zip(budgets, spent, strict=True)]


def _budgets_of(rules: Sequence[QuotaRule]) -> Iterator[_Budget]:
    for rule in rules:
        for name in () if rule.is_shadow else _BUDGETS:
            limit = getattr(rule, name)
            if limit is not None:
                yield _Budget(rule, name, limit)


def _month(now_s: float) -> int:
    """Counted from year 0, as calendar.lua does."""
    now = datetime.fromtimestamp(now_s, UTC)
    return now.year * 12 + now.month - 1
