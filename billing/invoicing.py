"""Closing a tenant's months into invoices, and adjusting what is closed.

A month can be closed once it has ended and a grace has passed, in order, each once.  What is posted
into a closed month after that is marked with the invoice it came too late for, in the transaction
that posts it, and is a line of the next one with its own month of service.  So every entry is on
exactly one invoice, and an issued one never changes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, func, insert, or_, select

from billing.errors import InvoiceRefused
from billing.invoice import Invoice, InvoiceLine, LineKind, allotted, carried_over
from billing.late import latest_invoices
from billing.ledger_database import (
    LedgerRef,
    books_alone,
    open_for_posting,
    reading,
    writing,
)
from billing.ledger_schema import (
    adjustments,
    instant_from_microseconds,
    invoices,
    joined_pico_usd,
    ledger_entries,
    microseconds,
    sum_pico_usd,
    unpriced_events,
    usage_events,
)
from billing.periods import Period, month_of, month_period, next_month

DEFAULT_GRACE: Final = timedelta(hours=2)
_MAX_PICO_USD: Final = 2**63 - 1
_MAX_REASON_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Adjustment:
    """An entry beside usage.  ``adjustment_id`` makes it count once, however often it is posted."""

    tenant_id: str
    adjustment_id: str
    kind: LineKind  # CORRECTION or CREDIT
    occurred_at: datetime  # of the service that it is for
    pico_usd: int  # below zero: in the tenant's favour
    reason: str
    event_id: str | None = None


class Invoicing:
    """Every method is one whole transaction; all raise LedgerUnavailable, LedgerMigrated."""

    def __init__(self, ledger_url: str, now: Callable[[], datetime]) -> None:
        self._engine = open_for_posting(ledger_url)
        self._now = now

    def close(self) -> None:
        self._engine.dispose()

    def close_month(
        self, tenant_id: str, month: str, *, time_zone: str, grace: timedelta = DEFAULT_GRACE
    ) -> Invoice:
        """Raises InvoiceRefused, RequestInvalid, having changed nothing."""
        with writing(self._engine, books_alone) as connection:
            latest = _latest(connection, tenant_id)
            period = _period(latest, month, time_zone)
            now = self._now()
            if now < period.ends_at + grace:
                raise InvoiceRefused(
                    f"{month} can be closed from {period.ends_at + grace:%Y-%m-%d %H:%M} UTC on"
                )
            if latest is None:
                _check_nothing_is_older(connection, tenant_id, period, time_zone)
            number = 1 if latest is None else latest.number + 1
            invoice = Invoice(
                tenant_id=tenant_id,
                number=number,
                month=month,
                time_zone=time_zone,
                period=period,
                closed_at=now,
                lines=allotted(
                    carried_over(
                        _all_lines(connection, tenant_id, latest, month, period, time_zone), month
                    )
                ),
                num_unpriced=_num_unpriced(connection, tenant_id, period),
            )
            connection.execute(insert(invoices), _row(invoice))
            return invoice

    def adjust(self, adjustment: Adjustment) -> bool:
        """False: it had been posted before.  Raises InvoiceRefused for one that makes no sense."""
        _check(adjustment)
        with writing(self._engine, books_alone) as connection:
            known = select(adjustments).where(
                adjustments.c.tenant_id == adjustment.tenant_id,
                adjustments.c.adjustment_id == adjustment.adjustment_id,
            )
            found = connection.execute(known).one_or_none()
            if found is not None:
                _check_same(adjustment, found)
                return False
            _check_event(connection, adjustment)
            occurred_at_us = microseconds(adjustment.occurred_at)
            late = latest_invoices(connection, [adjustment.tenant_id])
            connection.execute(
                insert(adjustments),
                {
                    "tenant_id": adjustment.tenant_id,
                    "adjustment_id": adjustment.adjustment_id,
                    "kind": adjustment.kind.value,
                    "event_id": adjustment.event_id,
                    "occurred_at_us": occurred_at_us,
                    "posted_at_us": microseconds(self._now()),
                    "pico_usd": adjustment.pico_usd,
                    "reason": adjustment.reason,
                    "late_after_invoice": late.number_after(adjustment.tenant_id, occurred_at_us),
                },
            )
            return True


def issued(ledger: LedgerRef, tenant_id: str, month: str) -> bytes | None:
    """The invoice's document as it was issued; None: the month is not closed."""
    query = select(invoices.c.document).where(
        invoices.c.tenant_id == tenant_id, invoices.c.month == month
    )
    with reading(ledger) as connection:
        document: bytes | None = connection.execute(query).scalar_one_or_none()
    return document


def _latest(connection: Connection, tenant_id: str) -> Row[Any] | None:
    query = (
        select(invoices)
        .where(invoices.c.tenant_id == tenant_id)
        .order_by(invoices.c.number.desc())
        .limit(1)
    )
    return connection.execute(query).one_or_none()


def _period(latest: Row[Any] | None, month: str, time_zone: str) -> Period:
    """Begins where the invoice before ended, also if the tenant has moved to another zone."""
    period = month_period(month, time_zone)
    if latest is None:
        return period
    if month != next_month(latest.month):
        raise InvoiceRefused(
            f"expected the month after {latest.month}, which is closed, got {month}"
        )
    return Period(instant_from_microseconds(latest.period_to_us), period.ends_at)


def _check_nothing_is_older(
    connection: Connection, tenant_id: str, period: Period, time_zone: str
) -> None:
    query = select(func.min(usage_events.c.occurred_at_us)).where(
        usage_events.c.tenant_id == tenant_id,
        usage_events.c.occurred_at_us < microseconds(period.begins_at),
    )
    oldest_us = connection.execute(query).scalar_one()
    if oldest_us is not None:
        month = month_of(instant_from_microseconds(oldest_us), time_zone)
        raise InvoiceRefused(f"the ledger has usage of {month}: close that first")


# Lines


def _all_lines(
    connection: Connection,
    tenant_id: str,
    latest: Row[Any] | None,
    month: str,
    period: Period,
    time_zone: str,
) -> list[InvoiceLine]:
    lines = list(_carried_in(latest, month))
    begins_us, ends_us = microseconds(period.begins_at), microseconds(period.ends_at)
    entries = ledger_entries.c
    mine = entries.tenant_id == tenant_id
    in_time = (
        entries.late_after_invoice.is_(None),
        entries.occurred_at_us >= begins_us,
        entries.occurred_at_us < ends_us,
    )
    lines += _usage_lines(connection, LineKind.USAGE, _usage().where(mine, *in_time), month)
    number = 0 if latest is None else latest.number
    if number:
        lines += _late_lines(connection, tenant_id, number, time_zone)
    lines += _adjustment_lines(connection, tenant_id, number, period, time_zone)
    return lines


def _usage() -> Select[Any]:
    line = (ledger_entries.c.model, ledger_entries.c.token_class, ledger_entries.c.price_id)
    return (
        select(*line, func.sum(ledger_entries.c.tokens), *sum_pico_usd())
        .group_by(*line)
        .order_by(*line)
    )


def _usage_lines(
    connection: Connection, kind: LineKind, query: Select[Any], month: str
) -> Iterator[InvoiceLine]:
    for model, token_class, price_id, tokens, micro_usd, rest in connection.execute(query):
        pico_usd = joined_pico_usd(micro_usd, rest)
        yield InvoiceLine(kind, month, model, token_class, price_id, int(tokens), pico_usd)


def _late_lines(
    connection: Connection, tenant_id: str, number: int, time_zone: str
) -> Iterator[InvoiceLine]:
    """By month of service: that of the invoice that was closed over it, where there is one."""
    entries = ledger_entries.c
    late = (entries.tenant_id == tenant_id, entries.late_after_invoice == number)
    for month, period in _closed_months(connection, tenant_id):
        within = (
            entries.occurred_at_us >= microseconds(period.begins_at),
            entries.occurred_at_us < microseconds(period.ends_at),
        )
        query = _usage().where(*late, *within)
        yield from _usage_lines(connection, LineKind.LATE_USAGE, query, month)
    first = select(func.min(invoices.c.period_from_us)).where(invoices.c.tenant_id == tenant_id)
    before = _usage().where(*late, entries.occurred_at_us < first.scalar_subquery())
    yield from _usage_lines(connection, LineKind.LATE_USAGE, before, "earlier")


def _closed_months(connection: Connection, tenant_id: str) -> list[tuple[str, Period]]:
    query = (
        select(invoices.c.month, invoices.c.period_from_us, invoices.c.period_to_us)
        .where(invoices.c.tenant_id == tenant_id)
        .order_by(invoices.c.number)
    )
    return [
        (month, Period(instant_from_microseconds(begins), instant_from_microseconds(ends)))
        for month, begins, ends in connection.execute(query)
    ]


def _adjustment_lines(
    connection: Connection, tenant_id: str, number: int, period: Period, time_zone: str
) -> Iterator[InvoiceLine]:
    columns = adjustments.c
    is_mine: ColumnElement[bool] = columns.late_after_invoice.is_(None) & (
        columns.occurred_at_us < microseconds(period.ends_at)
    )
    if number:
        in_time = is_mine & (columns.occurred_at_us >= microseconds(period.begins_at))
        is_mine = or_(in_time, columns.late_after_invoice == number)
    query = (
        select(adjustments)
        .where(columns.tenant_id == tenant_id, is_mine)
        .order_by(columns.occurred_at_us, columns.adjustment_id)
    )
    for row in connection.execute(query):
        month = month_of(instant_from_microseconds(row.occurred_at_us), time_zone)
        yield InvoiceLine(LineKind(row.kind), month, row.reason, None, None, 0, row.pico_usd)


def _carried_in(latest: Row[Any] | None, month: str) -> Sequence[InvoiceLine]:
    if latest is None or latest.carried_pico_usd == 0:
        return ()
    text = f"from {latest.month}"
    return (InvoiceLine(LineKind.CARRIED_IN, month, text, None, None, 0, latest.carried_pico_usd),)


def _num_unpriced(connection: Connection, tenant_id: str, period: Period) -> int:
    is_same_event = (unpriced_events.c.tenant_id == usage_events.c.tenant_id) & (
        unpriced_events.c.event_id == usage_events.c.event_id
    )
    query = (
        select(func.count())
        .select_from(unpriced_events)
        .join(usage_events, is_same_event)
        .where(
            usage_events.c.tenant_id == tenant_id,
            usage_events.c.occurred_at_us >= microseconds(period.begins_at),
            usage_events.c.occurred_at_us < microseconds(period.ends_at),
        )
    )
    return connection.execute(query).scalar_one()


def _row(invoice: Invoice) -> dict[str, object]:
    return {
        "tenant_id": invoice.tenant_id,
        "number": invoice.number,
        "month": invoice.month,
        "time_zone": invoice.time_zone,
        "period_from_us": microseconds(invoice.period.begins_at),
        "period_to_us": microseconds(invoice.period.ends_at),
        "closed_at_us": microseconds(invoice.closed_at),
        "total_cents": invoice.total_cents,
        "carried_pico_usd": invoice.carried_pico_usd,
        "document": invoice.to_json(),
    }


# Adjustments


def _check(adjustment: Adjustment) -> None:
    if adjustment.kind not in (LineKind.CORRECTION, LineKind.CREDIT):
        raise InvoiceRefused(f"expected a correction or a credit, got {adjustment.kind.value!r}")
    if adjustment.kind is LineKind.CREDIT and adjustment.pico_usd > 0:
        raise InvoiceRefused("expected a credit of less than nothing: it is the tenant's")
    if adjustment.pico_usd == 0 or abs(adjustment.pico_usd) > _MAX_PICO_USD:
        raise InvoiceRefused("expected an amount between 1e-12 and 9.2 million USD, not zero")
    if not adjustment.reason or not adjustment.adjustment_id:
        raise InvoiceRefused("expected a reason, and an id that makes it count once")
    if len(adjustment.reason) > _MAX_REASON_CHARS or not adjustment.reason.isprintable():
        raise InvoiceRefused(f"expected a reason of at most {_MAX_REASON_CHARS} printable signs")


def _check_same(adjustment: Adjustment, found: Row[Any]) -> None:
    if (found.pico_usd, found.kind) != (adjustment.pico_usd, adjustment.kind.value):
        raise InvoiceRefused(
            f"adjustment {adjustment.adjustment_id!r} has been posted with another amount or kind"
        )


def _check_event(connection: Connection, adjustment: Adjustment) -> None:
    if adjustment.event_id is None:
        return
    query = select(func.count()).where(
        usage_events.c.tenant_id == adjustment.tenant_id,
        usage_events.c.event_id == adjustment.event_id,
    )
    if not connection.execute(query).scalar_one():
        raise InvoiceRefused(f"the ledger has no event {adjustment.event_id!r} of this tenant")
