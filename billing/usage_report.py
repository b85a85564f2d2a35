"""What was used and charged, by day, model or key: sums of ``daily_usage``.  Read-only.

What waits for a price is counted from the events: ``daily_usage`` does not know it.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec
from sqlalchemy import BigInteger, func, literal_column, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import (
    US_PER_DAY,
    daily_usage,
    joined_pico_usd,
    usage_events,
)
from billing.money import plain, usd_from_pico_usd
from billing.pricing import TokenClass
from billing.unpriced import num_unpriced_by

_EPOCH: Final = date(1970, 1, 1)


class Grouping(StrEnum):
    DAY = "day"
    MODEL = "model"
    KEY = "key"
    TENANT = "tenant"


# Written out: PostgreSQL takes no two parameters for the same expression.
_DAY: Final = usage_events.c.occurred_at_us // literal_column(str(US_PER_DAY), BigInteger)
_EVENT_COLUMNS: Final = {
    Grouping.DAY: _DAY,
    Grouping.MODEL: usage_events.c.model,
    Grouping.KEY: usage_events.c.key_id,
    Grouping.TENANT: usage_events.c.tenant_id,
}
_COLUMNS: Final = {
    Grouping.DAY: daily_usage.c.day,
    Grouping.MODEL: daily_usage.c.model,
    Grouping.KEY: daily_usage.c.key_id,
    Grouping.TENANT: daily_usage.c.tenant_id,
}


@dataclass(frozen=True, slots=True)
class UsageRow:
    group: str
    num_requests: int
    num_unpriced_requests: int  # of them: they used tokens, which are not in ``usd`` yet
    tokens: Mapping[TokenClass, int]
    usd: Decimal  # exact

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens.values())


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """``tenant_id`` None: of all tenants.  Days are UTC's, ``last`` included."""

    by: Grouping
    first: date
    last: date
    tenant_id: str | None = None


def usage_rows(ledger: LedgerRef, query: UsageQuery) -> list[UsageRow]:
    """By group, in its order.  Raises LedgerMissing, LedgerUnavailable."""
    columns, group = daily_usage.c, _COLUMNS[query.by]
    first, end = ((day - _EPOCH).days for day in (query.first, query.last + timedelta(days=1)))
    of_events = usage_events.c
    within = [
        of_events.occurred_at_us >= first * US_PER_DAY,
        of_events.occurred_at_us < end * US_PER_DAY,
    ]
    tokens = [func.sum(columns[f"{c.value}_tokens"]) for c in TokenClass]
    money = (func.sum(columns.micro_usd), func.sum(columns.rest_pico_usd))
    statement = (
        select(group, func.sum(columns.num_requests), *tokens, *money)
        .where(columns.day >= first, columns.day < end)
        .group_by(group)
        .order_by(group)
    )
    if query.tenant_id is not None:
        statement = statement.where(columns.tenant_id == query.tenant_id)
        within.append(of_events.tenant_id == query.tenant_id)
    with reading(ledger) as connection:
        unpriced = num_unpriced_by(connection, _EVENT_COLUMNS[query.by], *within)
        return [_row(unpriced, *row) for row in connection.execute(statement)]


def usage_json(query: UsageQuery, rows: Sequence[UsageRow]) -> bytes:
    """Money as strings: a JSON number is a float to most readers."""
    document = {
        "tenant_id": query.tenant_id,
        "by": query.by.value,
        "from": query.first,
        "to": query.last,
        "currency": "USD",
        "rows": [dict(zip(_header(query.by), _cells(row), strict=True)) for row in rows],
    }
    return msgspec.json.encode(document)


def usage_csv(query: UsageQuery, rows: Sequence[UsageRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_header(query.by))
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _row(
    unpriced: Mapping[str | int, int], group: str | int, num_requests: int, *sums: int
) -> UsageRow:
    *tokens, micro_usd, rest = map(int, sums)
    name = str(_EPOCH + timedelta(days=group)) if isinstance(group, int) else group
    return UsageRow(
        group=name,
        num_requests=int(num_requests),
        num_unpriced_requests=unpriced.get(group, 0),
        tokens=dict(zip(TokenClass, tokens, strict=True)),
        usd=usd_from_pico_usd(joined_pico_usd(micro_usd, rest)),
    )


def _header(by: Grouping) -> list[str]:
    tokens = (f"{token_class.value}_tokens" for token_class in TokenClass)
    return [by.value, "num_requests", *tokens, "usd", "num_unpriced_requests"]


def _cells(row: UsageRow) -> list[str | int]:
    cost = plain(row.usd), row.num_unpriced_requests
    return [row.group, row.num_requests, *row.tokens.values(), *cost]
