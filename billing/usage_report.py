"""What was used and charged, by day, model or key: sums of ``daily_usage``.  Read-only."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec
from sqlalchemy import func, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import daily_usage, joined_pico_usd
from billing.money import plain, usd_from_pico_usd
from billing.pricing import TokenClass

_EPOCH: Final = date(1970, 1, 1)


class Grouping(StrEnum):
    DAY = "day"
    MODEL = "model"
    KEY = "key"
    TENANT = "tenant"


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
    tokens: Mapping[TokenClass, int]
    usd: Decimal  # exact; what has no price yet is not in it

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
    tokens = [func.sum(columns[f"{c.value}_tokens"]) for c in TokenClass]
    money = (func.sum(columns.micro_usd), func.sum(columns.rest_pico_usd))
    statement = (
        select(group, func.sum(columns.num_requests), *tokens, *money)
        .where(columns.day >= (query.first - _EPOCH).days)
        .where(columns.day <= (query.last - _EPOCH).days)
        .group_by(group)
        .order_by(group)
    )
    if query.tenant_id is not None:
        statement = statement.where(columns.tenant_id == query.tenant_id)
    with reading(ledger) as connection:
        return [_row(query.by, *row) for row in connection.execute(statement)]


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


def _row(by: Grouping, group: str | int, num_requests: int, *sums: int) -> UsageRow:
    *tokens, micro_usd, rest = map(int, sums)
    name = str(_EPOCH + timedelta(days=group)) if isinstance(group, int) else group
    return UsageRow(
        group=name,
        num_requests=int(num_requests),
        tokens=dict(zip(TokenClass, tokens, strict=True)),
        usd=usd_from_pico_usd(joined_pico_usd(micro_usd, rest)),
    )


def _header(by: Grouping) -> list[str]:
    return [by.value, "num_requests", *(f"{c.value}_tokens" for c in TokenClass), "usd"]


def _cells(row: UsageRow) -> list[str | int]:
    return [row.group, row.num_requests, *row.tokens.values(), plain(row.usd)]
