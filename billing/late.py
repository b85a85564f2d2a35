"""Which postings come too late for an invoice that has been issued."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from billing.ledger_schema import invoices, microseconds
from contracts.usage import UsageEvent


@dataclass(frozen=True, slots=True)
class LatestInvoices:
    """Of the tenants that have any: (number, end of its period in microseconds)."""

    by_tenant: Mapping[str, tuple[int, int]]

    def number_after(self, tenant_id: str, occurred_at_us: int) -> int | None:
        """The invoice that has been issued and would have had it; None: it is in time."""
        latest = self.by_tenant.get(tenant_id)
        return latest[0] if latest is not None and occurred_at_us < latest[1] else None

    def is_late(self, event: UsageEvent) -> bool:
        return self.number_after(event.tenant_id, microseconds(event.occurred_at)) is not None


def latest_invoices(connection: Connection, tenant_ids: Iterable[str]) -> LatestInvoices:
    """Stays true for the transaction: no invoice is issued beside one that posts."""
    query = (
        select(invoices.c.tenant_id, func.max(invoices.c.number), func.max(invoices.c.period_to_us))
        .where(invoices.c.tenant_id.in_(sorted(set(tenant_ids))))
        .group_by(invoices.c.tenant_id)
    )
    return LatestInvoices(
        {tenant_id: (number, ends_us) for tenant_id, number, ends_us in connection.execute(query)}
    )
