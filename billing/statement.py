"""What a tenant owes for a month, line by line, out of the ledger.  Read-only.

Amounts are exact; a statement rounds once, its total, half-even to cents.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import msgspec
from sqlalchemy import Connection, func, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import (
    adjustments,
    joined_pico_usd,
    ledger_entries,
    microseconds,
    prices,
    sum_pico_usd,
    usage_events,
)
from billing.money import (
    cents_half_even,
    plain,
    sum_usd,
    usd_from_pico_usd,
    usd_per_million_from_pico_usd,
)
from billing.periods import month_period
from billing.pricing import TokenClass
from billing.unpriced import HAS_USAGE, num_unpriced_by


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One model, token class and price: ``tokens`` x price is ``usd``, exactly."""

    model: str
    token_class: TokenClass
    price_id: str
    usd_per_million_tokens: Decimal
    tokens: int
    usd: Decimal


@dataclass(frozen=True, slots=True)
class StatementAdjustment:
    """A correction or a credit for service of the month."""

    kind: str
    reason: str
    usd: Decimal  # below zero: in the tenant's favour


@dataclass(frozen=True, slots=True)
class Statement:
    """Of [``period_from``, ``period_to``), a month of ``time_zone``.

    Lines and adjustments sum to ``total_usd``.

    What has been used in it until now, whenever it is billed: ``invoicing`` makes what is to be
    paid.
    """

    tenant_id: str
    month: str
    time_zone: str
    period_from: datetime
    period_to: datetime
    num_requests: int  # that used tokens, whether or not the answer was finished
    num_requests_without_usage: int  # refused, or failed before any token: nothing to charge
    num_unpriced_requests: int  # of num_requests: not in any line yet
    unpriced_models: tuple[str, ...]  # theirs: without a price for that time
    lines: tuple[StatementLine, ...]
    adjustments: tuple[StatementAdjustment, ...]
    total_usd: Decimal  # exact
    amount_due_usd: Decimal  # total_usd, rounded to cents; nothing where that is below zero

    def to_json(self) -> bytes:
        """Money as strings: a JSON number is a float to most readers."""
        document = {
            "tenant_id": self.tenant_id,
            "month": self.month,
            "time_zone": self.time_zone,
            "period_from": self.period_from,
            "period_to": self.period_to,
            "currency": "USD",
            "num_requests": self.num_requests,
            "num_requests_without_usage": self.num_requests_without_usage,
            "num_unpriced_requests": self.num_unpriced_requests,
            "unpriced_models": self.unpriced_models,
            "lines": [
                {
                    "model": line.model,
                    "token_class": line.token_class.value,
                    "price_id": line.price_id,
                    "usd_per_million_tokens": plain(line.usd_per_million_tokens),
                    "tokens": line.tokens,
                    "usd": plain(line.usd),
                }
                for line in self.lines
            ],
            "adjustments": [
                {"kind": each.kind, "reason": each.reason, "usd": plain(each.usd)}
                for each in self.adjustments
            ],
            "total_usd": plain(self.total_usd),
            "amount_due_usd": plain(self.amount_due_usd),
        }
        return msgspec.json.encode(document)


def statement(ledger: LedgerRef, tenant_id: str, month: str, time_zone: str = "UTC") -> Statement:
    """``month`` is ``YYYY-MM``, of the tenant's zone.

    Raises RequestInvalid, LedgerMissing, LedgerUnavailable.
    """
    period = month_period(month, time_zone)
    period_from, period_to = period.begins_at, period.ends_at
    with reading(ledger) as connection:
        lines = _lines(connection, tenant_id, period_from, period_to)
        adjusted = _adjustments(connection, tenant_id, period_from, period_to)
        num_used, num_idle, unpriced = _num_requests(connection, tenant_id, period_from, period_to)
    total_usd = sum_usd([*(line.usd for line in lines), *(each.usd for each in adjusted)])
    return Statement(
        tenant_id=tenant_id,
        month=month,
        time_zone=time_zone,
        period_from=period_from,
        period_to=period_to,
        num_requests=num_used,
        num_requests_without_usage=num_idle,
        num_unpriced_requests=sum(unpriced.values()),
        unpriced_models=tuple(sorted(unpriced)),
        lines=lines,
        adjustments=adjusted,
        total_usd=total_usd,
        amount_due_usd=cents_half_even(max(total_usd, usd_from_pico_usd(0))),
    )


def _lines(
    connection: Connection, tenant_id: str, period_from: datetime, period_to: datetime
) -> tuple[StatementLine, ...]:
    line = (ledger_entries.c.model, ledger_entries.c.token_class, ledger_entries.c.price_id)
    query = (
        select(*line, func.sum(ledger_entries.c.tokens), *sum_pico_usd())
        .where(
            ledger_entries.c.tenant_id == tenant_id,
            ledger_entries.c.occurred_at_us >= microseconds(period_from),
            ledger_entries.c.occurred_at_us < microseconds(period_to),
        )
        .group_by(*line)
        .order_by(*line)
    )
    rates = {row.price_id: row._asdict() for row in connection.execute(select(prices))}
    return tuple(
        StatementLine(
            model=model,
            token_class=TokenClass(token_class),
            price_id=price_id,
            usd_per_million_tokens=usd_per_million_from_pico_usd(
                rates[price_id][f"{token_class}_pico_usd"]
            ),
            tokens=int(tokens),
            usd=usd_from_pico_usd(joined_pico_usd(micro_usd, rest)),
        )
        for model, token_class, price_id, tokens, micro_usd, rest in connection.execute(query)
    )


def _adjustments(
    connection: Connection, tenant_id: str, period_from: datetime, period_to: datetime
) -> tuple[StatementAdjustment, ...]:
    columns = adjustments.c
    query = (
        select(columns.kind, columns.reason, columns.pico_usd)
        .where(
            columns.tenant_id == tenant_id,
            columns.occurred_at_us >= microseconds(period_from),
            columns.occurred_at_us < microseconds(period_to),
        )
        .order_by(columns.posted_at_us, columns.adjustment_id)
    )
    return tuple(
        StatementAdjustment(kind, reason, usd_from_pico_usd(pico_usd))
        for kind, reason, pico_usd in connection.execute(query)
    )


def _num_requests(
    connection: Connection, tenant_id: str, period_from: datetime, period_to: datetime
) -> tuple[int, int, dict[str, int]]:
    """(with usage, without, unpriced by model)."""
    columns = usage_events.c
    within = (
        columns.tenant_id == tenant_id,
        columns.occurred_at_us >= microseconds(period_from),
        columns.occurred_at_us < microseconds(period_to),
    )
    counts = select(func.count().filter(HAS_USAGE), func.count().filter(~HAS_USAGE)).where(*within)
    num_used, num_idle = connection.execute(counts).one()
    return num_used, num_idle, num_unpriced_by(connection, columns.model, *within)
