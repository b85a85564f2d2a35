"""Alerts: raised once per threshold and period, kept until whoever is to know has taken them.

A row is the fact; a delivery to one channel is another row.  Killed between the two, a consumer
delivers again: the alert's id tells the receiver that it is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, func, select

from billing.budgets import BudgetDays, open_periods, reached
from billing.bulk_insert import insert_once
from billing.ledger_database import (
    books_shared,
    open_for_posting,
    open_for_reading,
    reading,
    writing,
)
from billing.ledger_schema import (
    alert_deliveries,
    alerts,
    daily_usage,
    joined_pico_usd,
    microseconds,
)
from billing.money import plain, trimmed, usd_from_pico_usd
from billing.terms import BillingTerms, Budget
from contracts.alerts import BudgetThreshold, encode_alert

_MAX_PENDING: Final = 100


class Channel(StrEnum):
    """Who is told, beside the log: each takes an alert, or does not, for itself."""

    WEBHOOK = "webhook"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Alert:
    """``document`` is what is told: JSON."""

    tenant_id: str
    budget: str
    period: str
    threshold_percent: int
    document: bytes

    @property
    def alert_id(self) -> str:
        return f"{self.tenant_id}/{self.budget}/{self.period}/{self.threshold_percent}"


class AlertBook:
    """All methods raise LedgerUnavailable, what writes LedgerMigrated.

    Looking takes no lock that a posting waits for.
    """

    def __init__(self, ledger_url: str, now: Callable[[], datetime]) -> None:
        self._engine = open_for_posting(ledger_url)
        self._reader = open_for_reading(ledger_url)
        self._now = now
        self._known: frozenset[str] = frozenset()  # raised before: not to be written again

    def close(self) -> None:
        self._reader.dispose()
        self._engine.dispose()

    def raise_due(self, terms: BillingTerms) -> list[Alert]:
        """Of all budgets, what has been reached and was not raised before; returns that."""
        now = self._now()
        with reading(self._reader) as connection:
            reached = [
                alert
                for tenant_id, of_tenant in sorted(terms.tenants.items())
                for budget in of_tenant.budgets
                for alert in _reached(connection, tenant_id, budget, now)
            ]
        due = [alert for alert in reached if alert.alert_id not in self._known]
        if not due:
            return []
        at = {"raised_at_us": microseconds(now)}
        with writing(self._engine, books_shared) as connection:
            raised = [
                alert
                for alert in due
                if connection.execute(
                    _ONCE_RAISED, {**_key(alert), **at, "document": alert.document}
                ).rowcount
            ]
        self._known = frozenset(alert.alert_id for alert in reached)
        return raised

    def pending(self, channel: Channel) -> Sequence[Alert]:
        """The oldest that it has not taken."""
        columns, taken = alerts.c, alert_deliveries.c
        key = (columns.tenant_id, columns.budget, columns.period, columns.threshold_percent)
        is_same = (
            (columns.tenant_id == taken.tenant_id)
            & (columns.budget == taken.budget)
            & (columns.period == taken.period)
            & (columns.threshold_percent == taken.threshold_percent)
            & (taken.channel == channel.value)
        )
        query = (
            select(*key, columns.document)
            .outerjoin(alert_deliveries, is_same)
            .where(taken.tenant_id.is_(None))
            .order_by(columns.raised_at_us, *key)
            .limit(_MAX_PENDING)
        )
        with reading(self._reader) as connection:
            return [Alert(*row) for row in connection.execute(query)]

    def mark_delivered(self, alert: Alert, channel: Channel) -> None:
        at = {"delivered_at_us": microseconds(self._now())}
        row = {**_key(alert), "channel": channel.value, **at}
        with writing(self._engine, books_shared) as connection:
            connection.execute(_ONCE_DELIVERED, row)


def _reached(
    connection: Connection, tenant_id: str, budget: Budget, now: datetime
) -> Iterator[Alert]:
    for days in open_periods(budget.period, now):
        spent = _spent_pico_usd(connection, tenant_id, budget.key_id, days)
        for percent in reached(budget, spent):
            told = BudgetThreshold(
                tenant_id=tenant_id,
                budget=budget.name,
                key_id=budget.key_id,
                period=days.name,
                threshold_percent=percent,
                spent_usd=plain(usd_from_pico_usd(spent)),
                budget_usd=trimmed(usd_from_pico_usd(budget.pico_usd)),
                raised_at=now,
            )
            yield Alert(tenant_id, budget.name, days.name, percent, encode_alert(told))


def _spent_pico_usd(
    connection: Connection, tenant_id: str, key_id: str | None, days: BudgetDays
) -> int:
    columns = daily_usage.c
    query = select(
        func.coalesce(func.sum(columns.micro_usd), 0),
        func.coalesce(func.sum(columns.rest_pico_usd), 0),
    ).where(columns.tenant_id == tenant_id, columns.day >= days.first, columns.day <= days.last)
    if key_id is not None:
        query = query.where(columns.key_id == key_id)
    micro_usd, rest = connection.execute(query).one()
    return joined_pico_usd(micro_usd, rest)


def _key(alert: Alert) -> dict[str, Any]:  # Any: values of a row
    return {
        "tenant_id": alert.tenant_id,
        "budget": alert.budget,
        "period": alert.period,
        "threshold_percent": alert.threshold_percent,
    }


_ONCE_RAISED: Final = insert_once(alerts)
_ONCE_DELIVERED: Final = insert_once(alert_deliveries)
