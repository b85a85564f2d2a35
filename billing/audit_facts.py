"""What an audit reads: the ledger, and the spool's events on their way there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, func, select, tuple_

from billing.audit import Account, Entries, Posted, expected_entries
from billing.bulk_insert import known_keys, rows_by_key
from billing.ledger_schema import (
    ENTRIES_OF_EVENTS,
    dead_letter_replays,
    dead_letters,
    instant_from_microseconds,
    microseconds,
    quota_acknowledgements,
    source_offsets,
    unpriced_events,
    usage_events,
)
from billing.pricing import Price, PriceBook
from billing.rating import prices_known
from billing.recorded_prices import recorded_rates
from billing.records import EventKey, Record
from billing.segment_file import records_of, segment_names
from contracts.errors import ContractError
from contracts.names import spool_source_id
from contracts.usage import UsageEvent, decode_usage_event

_EVENTS_AT_ONCE = 1_000


@dataclass(slots=True)
class Waiting:
    """What is in the spool and not yet in the ledger."""

    keys: set[EventKey] = field(default_factory=set)
    accounts: dict[str, Account] = field(default_factory=dict)  # by tenant
    numbers: dict[str, list[int]] = field(default_factory=dict)  # by boot
    num_unreadable: int = 0
    unreadable_segments: list[str] = field(default_factory=list)

    def add(self, event: UsageEvent) -> None:
        account = self.accounts.get(event.tenant_id, Account())
        self.keys.add((event.tenant_id, event.event_id))
        self.accounts[event.tenant_id] = account + Account(1, event.total_tokens)
        self.numbers.setdefault(event.gateway_boot_id, []).append(event.gateway_seq)


def read_waiting(connection: Connection, spool_dir: Path | None) -> Waiting:
    """Raises OSError for the folder.  What went to Kafka may be in both: it does not wait then.

    ``None``: the spools are where they cannot be seen.
    """
    waiting = Waiting()
    if spool_dir is None:
        return waiting
    for name in segment_names(spool_dir):
        offset = connection.execute(
            select(source_offsets.c.next_offset).where(
                source_offsets.c.source_id == spool_source_id(name)
            )
        ).scalar_one_or_none()
        path = spool_dir / name
        try:
            if _is_posted_whole(path, offset):
                continue
            records = records_of(path, 0 if offset is None else offset)
            while some := list(islice(records, _EVENTS_AT_ONCE)):
                _add_unknown(connection, waiting, some)
        except OSError:
            waiting.unreadable_segments.append(name)
    return waiting


def _is_posted_whole(path: Path, offset: int | None) -> bool:
    """Then nobody has to read it.  Raises OSError."""
    try:
        return offset == path.stat().st_size
    except FileNotFoundError:
        return True  # billing has removed it meanwhile


def _add_unknown(connection: Connection, waiting: Waiting, records: Sequence[Record]) -> None:
    events: list[UsageEvent] = []
    for record in records:
        try:
            events.append(decode_usage_event(record.payload))
        except ContractError:
            waiting.num_unreadable += 1
    known = known_keys(connection, {(event.tenant_id, event.event_id) for event in events})
    for event in events:
        key = (event.tenant_id, event.event_id)
        if key not in known and key not in waiting.keys:
            waiting.add(event)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Of one tenant's bills: what the quota's totals are known to have lost, the last time when."""

    account: Account
    lost_before: datetime


def acknowledged(connection: Connection) -> Mapping[str, Acknowledged]:
    columns = quota_acknowledgements.c
    query = select(
        columns.tenant_id,
        func.sum(columns.num_requests),
        func.sum(columns.num_tokens),
        func.max(columns.lost_before_us),
    ).group_by(columns.tenant_id)
    return {
        tenant_id: Acknowledged(
            Account(int(num_requests), int(num_tokens)), instant_from_microseconds(lost_before_us)
        )
        for tenant_id, num_requests, num_tokens, lost_before_us in connection.execute(query)
    }


def first_event_at(connection: Connection, tenant_id: str) -> datetime | None:
    query = select(func.min(usage_events.c.occurred_at_us)).where(
        usage_events.c.tenant_id == tenant_id
    )
    at_us = connection.execute(query).scalar_one()
    return None if at_us is None else instant_from_microseconds(at_us)


def posted_events(
    connection: Connection, price_book: PriceBook, *, since: datetime | None
) -> Iterator[Posted]:
    """All that were posted ``since`` then; memory does not grow with them."""
    rates = recorded_rates(connection)
    for events in _event_pages(connection, since):
        keys = [(event.tenant_id, event.event_id) for event in events]
        entries = _entries(connection, keys)
        unpriced = _unpriced(connection, keys)
        for each, event in zip(keys, events, strict=True):
            charged = entries.get(each, {})
            prices = [] if each in unpriced else prices_known(event, price_book)
            yield Posted(event, charged, _expected(event, charged, prices, rates))


def _event_pages(connection: Connection, since: datetime | None) -> Iterator[list[UsageEvent]]:
    """By key, or in the order they were posted: as an index has them."""
    columns = usage_events.c
    key: list[Column[Any]] = [columns.tenant_id, columns.event_id]  # Any: numbers and names
    after: tuple[object, ...] = ("", "")
    if since is not None:
        key, after = [columns.posted_at_us, *key], (microseconds(since), *after)
    query = select(*key, columns.payload).order_by(*key).limit(_EVENTS_AT_ONCE)
    while rows := connection.execute(query.where(tuple_(*key) > after)).all():
        yield [decode_usage_event(row.payload) for row in rows]
        after = tuple(rows[-1][:-1])


def _expected(
    event: UsageEvent,
    charged: Entries,
    prices: Sequence[Price],
    rates: Mapping[str, Mapping[str, int]],
) -> Entries | None:
    """By the price it has been charged by, if it is one of its own: that one it keeps."""
    known = [price.price_id for price in prices if price.price_id in rates]
    charged_by = {price_id for _, _, price_id in charged.values()}
    own = [price_id for price_id in known if charged_by == {price_id}]
    for price_id in [*own, *known][:1]:
        return expected_entries(event, rates[price_id], price_id)
    return None


def _entries(
    connection: Connection, keys: Sequence[EventKey]
) -> Mapping[EventKey, dict[str, tuple[int, int, str]]]:
    found: dict[EventKey, dict[str, tuple[int, int, str]]] = {}
    for row in rows_by_key(connection, ENTRIES_OF_EVENTS, usage_events, keys):
        charged = found.setdefault((row.tenant_id, row.event_id), {})
        charged[row.token_class] = (row.tokens, row.pico_usd, row.price_id)
    return found


def _unpriced(connection: Connection, keys: Sequence[EventKey]) -> set[EventKey]:
    """Those that wait to be rated, whether or not the book knows a price by now."""
    query = select(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
    return {(row[0], row[1]) for row in rows_by_key(connection, query, unpriced_events, keys)}


def num_dead_letters(connection: Connection) -> int:
    """Without those that have been replayed."""
    num_letters, num_replayed = (
        connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (dead_letters, dead_letter_replays)
    )
    return int(num_letters - num_replayed)


def num_unpriced(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(unpriced_events)).scalar_one()


def latest_tiers(connection: Connection, tenant_ids: Sequence[str]) -> Mapping[str, str]:
    """By tenant, as their latest events say; tenants without any are left out."""
    found: dict[str, str] = {}
    for tenant_id in sorted(set(tenant_ids)):
        latest = (
            select(usage_events.c.tier)
            .where(usage_events.c.tenant_id == tenant_id, usage_events.c.tier != "")
            .order_by(usage_events.c.occurred_at_us.desc())
            .limit(1)
        )
        tier = connection.execute(latest).scalar_one_or_none()
        if tier is not None:
            found[tenant_id] = tier
    return found
