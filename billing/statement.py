"""What the ledger says: a month's statement, a request, a tenant's totals.  Read-only.

Amounts are exact; a statement rounds once, its total, half-even to cents.  Sums are taken of whole
millionths of a dollar and of the rest apart, so that no sum can overflow 64 bits.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, func, select

from billing.errors import RequestInvalid
from billing.ledger_schema import (
    check_complete,
    instant_from_microseconds,
    ledger_entries,
    microseconds,
    open_for_reading,
    prices,
    source_offsets,
    translated_errors,
    unpriced_events,
    usage_events,
)
from billing.money import (
    cents_half_even,
    plain,
    sum_usd,
    usd_from_pico_usd,
    usd_per_million_from_pico_usd,
)
from billing.pricing import TokenClass

LedgerRef = str | Engine
"""A ledger URL, or an engine of ``ledger_schema.open_for_reading`` for many reads."""

_PICO_USD_PER_MICRO_USD: Final = 10**6
_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


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
class Statement:
    """Of the UTC month [``period_from``, ``period_to``); the lines sum to ``total_usd``."""

    tenant_id: str
    month: str
    period_from: datetime
    period_to: datetime
    num_requests: int
    num_unpriced_requests: int  # used, and not in any line yet
    lines: tuple[StatementLine, ...]
    total_usd: Decimal  # exact
    amount_due_usd: Decimal  # total_usd, rounded to cents

    def to_json(self) -> bytes:
        """Money as strings: a JSON number is a float to most readers."""
        document = {
            "tenant_id": self.tenant_id,
            "month": self.month,
            "period_from": self.period_from,
            "period_to": self.period_to,
            "currency": "USD",
            "num_requests": self.num_requests,
            "num_unpriced_requests": self.num_unpriced_requests,
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
            "total_usd": plain(self.total_usd),
            "amount_due_usd": plain(self.amount_due_usd),
        }
        return msgspec.json.encode(document)


@dataclass(frozen=True, slots=True)
class PostedEvent:
    """One request in the ledger."""

    tenant_id: str
    event_id: str
    request_id: str
    model: str
    occurred_at: datetime
    tokens: Mapping[TokenClass, int]
    usd: Decimal | None  # None: unpriced


@dataclass(frozen=True, slots=True)
class Totals:
    """All a tenant ever used, for reconciliation.  ``pico_usd`` leaves unpriced requests out."""

    num_requests: int
    num_unpriced_requests: int
    tokens: Mapping[TokenClass, int]
    pico_usd: int


def statement(ledger: LedgerRef, tenant_id: str, month: str) -> Statement:
    """``month`` is ``YYYY-MM``.  Raises RequestInvalid, LedgerMissing, LedgerUnavailable."""
    period_from, period_to = month_period(month)
    with _reading(ledger) as connection:
        lines = _lines(connection, tenant_id, period_from, period_to)
        num_requests, num_unpriced = _num_requests(connection, tenant_id, period_from, period_to)
    total_usd = sum_usd(line.usd for line in lines)
    return Statement(
        tenant_id=tenant_id,
        month=month,
        period_from=period_from,
        period_to=period_to,
        num_requests=num_requests,
        num_unpriced_requests=num_unpriced,
        lines=lines,
        total_usd=total_usd,
        amount_due_usd=cents_half_even(total_usd),
    )


def month_period(month: str) -> tuple[datetime, datetime]:
    """[first instant, first instant of the next month), UTC.  Raises RequestInvalid."""
    if _MONTH.fullmatch(month) is None:
        raise RequestInvalid(f"expected a month such as 2026-11, got {month!r}")
    try:
        first = datetime(int(month[:4]), int(month[5:]), 1, tzinfo=UTC)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    except ValueError as exc:
        raise RequestInvalid(f"expected a month of the years 1 to 9999, got {month!r}") from exc
    return first, following


def find_event(
    ledger: LedgerRef, *, request_id: str, tenant_id: str | None = None
) -> PostedEvent | None:
    """The latest request a client knows by ``request_id``; ids are unique only within a tenant.

    ``tenant_id`` None looks at every tenant's, which is for operators.
    """
    query = (
        select(usage_events)
        .where(usage_events.c.request_id == request_id)
        .order_by(usage_events.c.occurred_at_us.desc(), usage_events.c.event_id.desc())
        .limit(1)
    )
    if tenant_id is not None:
        query = query.where(usage_events.c.tenant_id == tenant_id)
    with _reading(ledger) as connection:
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return PostedEvent(
            tenant_id=row.tenant_id,
            event_id=row.event_id,
            request_id=row.request_id,
            model=row.model,
            occurred_at=instant_from_microseconds(row.occurred_at_us),
            tokens={c: getattr(row, f"{c.value}_tokens") for c in TokenClass},
            usd=_event_usd(connection, row.tenant_id, row.event_id),
        )


def totals(ledger: LedgerRef, tenant_id: str) -> Totals:
    """Raises LedgerMissing, LedgerUnavailable."""
    events = select(
        func.count(),
        *(func.coalesce(func.sum(usage_events.c[f"{c.value}_tokens"]), 0) for c in TokenClass),
    ).where(usage_events.c.tenant_id == tenant_id)
    waiting = select(func.count()).where(unpriced_events.c.tenant_id == tenant_id)
    money = select(*_sum_pico_usd()).where(ledger_entries.c.tenant_id == tenant_id)
    with _reading(ledger) as connection:
        num_requests, *tokens = connection.execute(events).one()
        micro_usd, rest = connection.execute(money).one()
        num_unpriced = connection.execute(waiting).scalar_one()
    return Totals(
        num_requests=num_requests,
        num_unpriced_requests=num_unpriced,
        tokens=dict(zip(TokenClass, tokens, strict=True)),
        pico_usd=_joined(micro_usd, rest),
    )


def next_offset(ledger: LedgerRef, source_id: str) -> int | None:
    """How far a source has been posted, as ``Ledger.next_offset``, without its write lock.

    A spool segment's source id is ``spool/`` and its file name.
    """
    query = select(source_offsets.c.next_offset).where(source_offsets.c.source_id == source_id)
    with _reading(ledger) as connection:
        offset: int | None = connection.execute(query).scalar_one_or_none()
    return offset


@contextmanager
def _reading(ledger: LedgerRef) -> Iterator[Connection]:
    """One consistent snapshot."""
    engine = open_for_reading(ledger) if isinstance(ledger, str) else ledger
    try:
        with translated_errors(), engine.begin() as connection:
            check_complete(connection)
            yield connection
    finally:
        if isinstance(ledger, str):
            engine.dispose()


def _lines(
    connection: Connection, tenant_id: str, period_from: datetime, period_to: datetime
) -> tuple[StatementLine, ...]:
    line = (ledger_entries.c.model, ledger_entries.c.token_class, ledger_entries.c.price_id)
    query = (
        select(*line, func.sum(ledger_entries.c.tokens), *_sum_pico_usd())
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
            tokens=tokens,
            usd=usd_from_pico_usd(_joined(micro_usd, rest)),
        )
        for model, token_class, price_id, tokens, micro_usd, rest in connection.execute(query)
    )


def _num_requests(
    connection: Connection, tenant_id: str, period_from: datetime, period_to: datetime
) -> tuple[int, int]:
    """(all, unpriced)."""
    within = (
        usage_events.c.tenant_id == tenant_id,
        usage_events.c.occurred_at_us >= microseconds(period_from),
        usage_events.c.occurred_at_us < microseconds(period_to),
    )
    is_same_event = (unpriced_events.c.tenant_id == usage_events.c.tenant_id) & (
        unpriced_events.c.event_id == usage_events.c.event_id
    )
    everything = select(func.count()).select_from(usage_events).where(*within)
    unpriced = (
        select(func.count()).select_from(unpriced_events).join(usage_events, is_same_event)
    ).where(*within)
    return (
        connection.execute(everything).scalar_one(),
        connection.execute(unpriced).scalar_one(),
    )


def _event_usd(connection: Connection, tenant_id: str, event_id: str) -> Decimal | None:
    waiting = select(func.count()).where(
        unpriced_events.c.tenant_id == tenant_id, unpriced_events.c.event_id == event_id
    )
    if connection.execute(waiting).scalar_one():
        return None
    owed = select(*_sum_pico_usd()).where(
        ledger_entries.c.tenant_id == tenant_id, ledger_entries.c.event_id == event_id
    )
    micro_usd, rest = connection.execute(owed).one()
    return usd_from_pico_usd(_joined(micro_usd, rest))


def _sum_pico_usd() -> tuple[ColumnElement[int], ColumnElement[int]]:
    """(sum of whole micro-dollars, sum of what is left over), for ``_joined``."""
    pico_usd = ledger_entries.c.pico_usd
    return (
        func.coalesce(func.sum(pico_usd // _PICO_USD_PER_MICRO_USD), 0),
        func.coalesce(func.sum(pico_usd % _PICO_USD_PER_MICRO_USD), 0),
    )


def _joined(micro_usd: int, rest_pico_usd: int) -> int:
    return int(micro_usd) * _PICO_USD_PER_MICRO_USD + int(rest_pico_usd)
