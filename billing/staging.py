"""A batch on its way into the ledger: one staged row an event, then one statement a table.

Which events are new, what entries they make and what their days sum up to is found by the
database, by statements that SQLite and PostgreSQL both understand: in Python each event costs one
row.  The staging table is the connection's own, and is empty when a batch begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    MetaData,
    Table,
    Text,
    delete,
    select,
    text,
)
from sqlalchemy.schema import CreateTable

from billing.bulk_insert import Row, in_parts, insert_rows
from billing.daily_usage import OR_ADD
from billing.late import LatestInvoices, latest_invoices
from billing.ledger_schema import (
    PICO_USD_PER_MICRO_USD,
    SUMS_MODULUS,
    US_PER_DAY,
    daily_usage,
    gateway_boots,
    ledger_entries,
    microseconds,
    unpriced_events,
    usage_events,
)
from billing.posting import Posting
from billing.pricing import TOKEN_CLASSES
from billing.rating import Charge
from billing.records import EventKey

STAGED: Final = "staged_events"
_CLASSES: Final = [token_class.value for token_class in TOKEN_CLASSES]

_staged: Final = Table(
    STAGED,
    MetaData(),
    *(Column(column.name, column.type) for column in usage_events.columns),
    Column("is_unpriced", Boolean),
    Column("price_id", Text),
    Column("late_after_invoice", BigInteger),
    *(Column(f"{name}_charged", BigInteger) for name in _CLASSES),
    *(Column(f"{name}_pico_usd", BigInteger) for name in _CLASSES),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",
)
CREATE_STAGED: Final = CreateTable(_staged, if_not_exists=True)


def _names(table: Table) -> str:
    return ", ".join(table.columns.keys())


# In the order of their keys, so that two consumers never wait for each other in a circle.
# SQLite takes ON CONFLICT after a SELECT only where that has a WHERE.
_INSERT_EVENTS: Final = text(
    f"INSERT INTO usage_events ({_names(usage_events)}) "
    f"SELECT {_names(usage_events)} FROM {STAGED} WHERE true ORDER BY tenant_id, event_id "
    "ON CONFLICT DO NOTHING RETURNING source_offset"
)
_STORED: Final = select(
    usage_events.c.tenant_id, usage_events.c.event_id, usage_events.c.payload
).join_from(
    _staged,
    usage_events,
    (usage_events.c.tenant_id == _staged.c.tenant_id)
    & (usage_events.c.event_id == _staged.c.event_id),
)
_INSERT_ENTRIES: Final = text(
    f"INSERT INTO ledger_entries ({_names(ledger_entries)}) "
    + " UNION ALL ".join(
        f"SELECT tenant_id, occurred_at_us, event_id, '{name}', model, {name}_charged, "
        f"{name}_pico_usd, price_id, late_after_invoice FROM {STAGED} WHERE {name}_charged > 0"
        for name in _CLASSES
    )
    + " ORDER BY 1, 2, 3, 4"  # neighbours in the key's order fill its pages
)
_INSERT_UNPRICED: Final = text(
    f"INSERT INTO unpriced_events ({_names(unpriced_events)}) "
    f"SELECT {_names(unpriced_events)} FROM {STAGED} WHERE is_unpriced"
)


def _sum(of_each: str) -> str:
    """Over all classes, of ``of_each`` with a class's name in it."""
    whole = " + ".join(of_each.format(name) for name in _CLASSES)
    return f"CAST(sum({whole}) AS bigint)"


_ADD_DAYS: Final = text(
    f"INSERT INTO daily_usage ({_names(daily_usage)}) "
    f"SELECT tenant_id, occurred_at_us / {US_PER_DAY}, key_id, model, count(*), "
    + "".join(f"CAST(sum({name}_tokens) AS bigint), " for name in _CLASSES)
    + _sum(f"{{}}_pico_usd / {PICO_USD_PER_MICRO_USD}")
    + ", "
    + _sum(f"{{}}_pico_usd % {PICO_USD_PER_MICRO_USD}")
    + f" FROM {STAGED} WHERE true GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 {OR_ADD}"
)
_NUMBER: Final = f"(gateway_seq % {SUMS_MODULUS})"
_ADD_NUMBERS: Final = text(
    f"INSERT INTO gateway_boots ({_names(gateway_boots)}) "
    f"SELECT gateway_boot_id, source_id, count(*), max(gateway_seq), "
    f"CAST(sum({_NUMBER}) AS bigint), "
    f"CAST(sum({_NUMBER} * {_NUMBER} % {SUMS_MODULUS}) AS bigint), "
    f"min(posted_at_us), max(posted_at_us) "
    f"FROM {STAGED} WHERE NOT is_recovered GROUP BY 1, 2 ORDER BY 1, 2 "
    "ON CONFLICT (gateway_boot_id, source_id) DO UPDATE SET "
    + ", ".join(
        f"{name} = gateway_boots.{name} + excluded.{name}"
        for name in ("num_events", "sum_numbers", "sum_squares")
    )
    + "".join(
        f", {name} = CASE WHEN excluded.{name} {than} gateway_boots.{name} "
        f"THEN excluded.{name} ELSE gateway_boots.{name} END"
        for name, than in (
            ("last_number", ">"),
            ("first_posted_at_us", "<"),
            ("last_posted_at_us", ">"),
        )
    )
)


@dataclass(frozen=True, slots=True)
class Staged:
    fresh: Sequence[Posting]
    repeats: Sequence[tuple[Posting, bytes]]  # each with what the ledger has under its key
    num_late: int = 0  # of the fresh: the month of their service has been invoiced


def post_staged(
    connection: Connection, source_id: str, postings: Sequence[Posting], posted_at_us: int
) -> Staged:
    """Adds those whose key neither the ledger nor this batch already had."""
    if not postings:
        return Staged([], [])
    first: dict[EventKey, Posting] = {}
    for posting in postings:
        first.setdefault(_key(posting), posting)
    late = latest_invoices(connection, {tenant_id for tenant_id, _ in first})
    _stage(connection, [_row(source_id, each, posted_at_us, late) for each in first.values()])
    new = set(connection.scalars(_INSERT_EVENTS))
    stored = _forget(connection, [each.offset for each in first.values() if each.offset not in new])
    fresh = [posting for posting in postings if posting.offset in new]
    if fresh:
        connection.execute(_INSERT_ENTRIES)
        connection.execute(_ADD_DAYS)
        connection.execute(_ADD_NUMBERS)
    if any(posting.charges is None for posting in fresh):
        connection.execute(_INSERT_UNPRICED)
    repeats = [posting for posting in postings if posting.offset not in new]
    payloads = {key: posting.payload for key, posting in first.items()} | stored
    return Staged(
        fresh,
        [(posting, payloads[_key(posting)]) for posting in repeats],
        num_late=sum(late.is_late(posting.event) for posting in fresh) if late.by_tenant else 0,
    )


def _key(posting: Posting) -> EventKey:
    return posting.event.tenant_id, posting.event.event_id


def _stage(connection: Connection, rows: Sequence[Row]) -> None:
    connection.execute(CREATE_STAGED)
    if connection.dialect.name == "sqlite":  # PostgreSQL does so at the end of a transaction
        connection.execute(delete(_staged))
    insert_rows(connection, _staged, rows)


def _forget(connection: Connection, offsets: Sequence[int]) -> dict[EventKey, bytes]:
    """Unstages what the ledger has, as it stands there."""
    stored: dict[EventKey, bytes] = {}
    for some in in_parts(offsets):
        named = _staged.c.source_offset.in_(some)
        for tenant_id, event_id, payload in connection.execute(_STORED.where(named)):
            stored[tenant_id, event_id] = payload
        connection.execute(delete(_staged).where(named))
    return stored


_NOTHING: Final = (0,) * len(TOKEN_CLASSES)


def _row(source_id: str, posting: Posting, posted_at_us: int, late: LatestInvoices) -> Row:
    """In the order of ``_staged``'s columns."""
    event, charges = posting.event, posting.charges
    at_us = microseconds(event.occurred_at)
    return (
        event.tenant_id,
        event.event_id,
        event.request_id,
        event.model,
        at_us,
        event.input_uncached_tokens,
        event.input_cache_read_tokens,
        event.output_text_tokens,
        source_id,
        posting.offset,
        posting.payload,
        event.key_id,
        event.tier,
        event.outcome.value,
        event.usage_source.value,
        event.input_cache_write_tokens,
        event.output_reasoning_tokens,
        event.gateway_boot_id,
        event.gateway_seq,
        event.is_recovered,
        posted_at_us,
        charges is None,
        charges[0].price_id if charges else None,
        late.number_after(event.tenant_id, at_us),
        *(_by_class(charges) if charges else (*_NOTHING, *_NOTHING)),
    )


def _by_class(charges: Sequence[Charge]) -> list[int]:
    """Tokens of each class, then what they cost."""
    found = [*_NOTHING, *_NOTHING]
    for charge in charges:
        place = TOKEN_CLASSES.index(charge.token_class)
        found[place] = charge.tokens
        found[place + len(_NOTHING)] = charge.pico_usd
    return found
