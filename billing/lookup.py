"""Single facts from the ledger: a request, a tenant's totals, how far a source is posted."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce

from sqlalchemy import Connection, func, select

from billing.bulk_insert import in_parts
from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import (
    ENTRIES_OF_EVENTS,
    TOKEN_COLUMNS,
    daily_usage,
    instant_from_microseconds,
    joined_pico_usd,
    ledger_entries,
    microseconds,
    source_offsets,
    sum_pico_usd,
    unpriced_events,
    usage_events,
)
from billing.money import usd_from_pico_usd
from billing.pricing import TokenClass
from billing.records import KAFKA_SOURCE
from contracts.usage import decode_usage_event


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
    with reading(ledger) as connection:
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
        *(func.coalesce(func.sum(column), 0) for column in TOKEN_COLUMNS),
    ).where(usage_events.c.tenant_id == tenant_id)
    waiting = select(func.count()).where(unpriced_events.c.tenant_id == tenant_id)
    money = select(*sum_pico_usd()).where(ledger_entries.c.tenant_id == tenant_id)
    with reading(ledger) as connection:
        num_requests, *tokens = connection.execute(events).one()
        micro_usd, rest = connection.execute(money).one()
        num_unpriced = connection.execute(waiting).scalar_one()
    return Totals(
        num_requests=num_requests,
        num_unpriced_requests=num_unpriced,
        tokens=dict(zip(TokenClass, map(int, tokens), strict=True)),
        pico_usd=joined_pico_usd(micro_usd, rest),
    )


@dataclass(frozen=True, slots=True)
class Used:
    """By one event.  ``pico_usd`` is nothing while it has no price."""

    num_tokens: int
    pico_usd: int


def used_by_event(
    ledger: LedgerRef, tenant_id: str, event_ids: Sequence[str]
) -> Mapping[str, Used]:
    """Of those, the ones that the ledger has."""
    found: dict[str, Used] = {}
    events, entries = usage_events.c, ledger_entries.c
    num_tokens = reduce(operator.add, TOKEN_COLUMNS)
    with reading(ledger) as connection:
        for some in in_parts(sorted(event_ids)):
            mine = (events.tenant_id == tenant_id, events.event_id.in_(some))
            spent = (
                ENTRIES_OF_EVENTS.with_only_columns(entries.event_id, *sum_pico_usd())
                .where(*mine)
                .group_by(entries.event_id)
            )
            pico_usd = {
                event_id: joined_pico_usd(micro_usd, rest)
                for event_id, micro_usd, rest in connection.execute(spent)
            }
            query = select(events.event_id, num_tokens).where(*mine)
            for event_id, tokens in connection.execute(query):
                found[event_id] = Used(int(tokens), pico_usd.get(event_id, 0))
    return found


def recovered_untold(ledger: LedgerRef, tenant_id: str, *, since: datetime) -> set[str]:
    """Ids of recovered events that their gateway had admitted without the quota's store."""
    columns = usage_events.c
    query = select(columns.payload).where(
        columns.tenant_id == tenant_id,
        columns.occurred_at_us >= microseconds(since),
        columns.is_recovered,
    )
    with reading(ledger) as connection:
        events = map(decode_usage_event, connection.scalars(query))
        return {event.event_id for event in events if event.is_locally_admitted}


def tenants(ledger: LedgerRef) -> list[str]:
    """Everyone who has events."""
    query = select(daily_usage.c.tenant_id).distinct().order_by(daily_usage.c.tenant_id)
    with reading(ledger) as connection:
        return list(connection.scalars(query))


def next_offset(ledger: LedgerRef, source_id: str) -> int | None:
    """How far a source has been posted, as ``Ledger.next_offset``, without its write lock."""
    query = select(source_offsets.c.next_offset).where(source_offsets.c.source_id == source_id)
    with reading(ledger) as connection:
        offset: int | None = connection.execute(query).scalar_one_or_none()
    return offset


def reads_kafka(ledger: LedgerRef) -> bool:
    """Whether events have ever come from there."""
    query = select(func.count()).where(source_offsets.c.source_id.startswith(KAFKA_SOURCE))
    with reading(ledger) as connection:
        return bool(connection.execute(query).scalar_one())


def _event_usd(connection: Connection, tenant_id: str, event_id: str) -> Decimal | None:
    waiting = select(func.count()).where(
        unpriced_events.c.tenant_id == tenant_id, unpriced_events.c.event_id == event_id
    )
    if connection.execute(waiting).scalar_one():
        return None
    owed = ENTRIES_OF_EVENTS.with_only_columns(*sum_pico_usd()).where(
        usage_events.c.tenant_id == tenant_id, usage_events.c.event_id == event_id
    )
    micro_usd, rest = connection.execute(owed).one()
    return usd_from_pico_usd(joined_pico_usd(micro_usd, rest))
