"""Money as an audit of all events asks for it: of entries, of those of events, and of days.

Invoices sum entries by their instants, budgets and spend counters sum days: an entry that no event
reaches would be invoiced, and a day's money that no entry makes would be held against a budget.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select

from billing.audit import Finding, finding_of_entries, finding_of_money
from billing.late_reports import late_corrections
from billing.ledger_schema import (
    ENTRIES_OF_EVENTS,
    daily_usage,
    joined_pico_usd,
    ledger_entries,
    sum_pico_usd,
)


@dataclass(frozen=True, slots=True)
class _Sum:
    num_entries: int = 0
    pico_usd: int = 0


_NOTHING: Final = _Sum()


def findings_of_money(connection: Connection) -> Iterator[Finding]:
    """Two looks at all entries: the database sums, here is a row a tenant."""
    entries = ledger_entries.c
    columns = (entries.tenant_id, func.count(), *sum_pico_usd())
    of_all = _sums(connection, select(*columns).group_by(entries.tenant_id))
    of_events = _sums(
        connection, ENTRIES_OF_EVENTS.with_only_columns(*columns).group_by(entries.tenant_id)
    )
    corrections = late_corrections(connection)
    of_days = _days(connection)
    for tenant_id in sorted({*of_all, *of_days}):
        all_entries = of_all.get(tenant_id, _NOTHING)
        reached = of_events.get(tenant_id, _NOTHING)
        if all_entries != reached:
            num_more = all_entries.num_entries - reached.num_entries
            pico_usd = all_entries.pico_usd - reached.pico_usd
            yield finding_of_entries(tenant_id, num_more, pico_usd)
        charged = all_entries.pico_usd + corrections.get(tenant_id, 0)
        if of_days.get(tenant_id, 0) != charged:
            yield finding_of_money(tenant_id, of_days.get(tenant_id, 0), charged)


def _sums(connection: Connection, query: Select[Any]) -> Mapping[str, _Sum]:  # Any: numbers, names
    return {
        tenant_id: _Sum(int(num_entries), joined_pico_usd(micro_usd, rest))
        for tenant_id, num_entries, micro_usd, rest in connection.execute(query)
    }


def _days(connection: Connection) -> Mapping[str, int]:
    days = daily_usage.c
    query = select(days.tenant_id, func.sum(days.micro_usd), func.sum(days.rest_pico_usd))
    return {
        tenant_id: joined_pico_usd(micro_usd, rest)
        for tenant_id, micro_usd, rest in connection.execute(query.group_by(days.tenant_id))
    }
