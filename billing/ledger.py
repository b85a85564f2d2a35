"""Posts events, entries and source offset in one transaction: at least once in, exactly once kept.

What makes it once: the key ``(tenant_id, event_id)`` has no expiry, and the offset is compared
before it is set, so a second consumer or a zombie cannot post from a place the ledger has left.
Entries are only added.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Connection, Table, delete, insert, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert as insert_if_new

from billing.dead_letter import DeadLetter, DeadReason
from billing.errors import OffsetConflict, PriceBookInvalid
from billing.ledger_schema import (
    dead_letters,
    ledger_entries,
    microseconds,
    open_for_posting,
    prices,
    source_offsets,
    translated_errors,
    unpriced_events,
    usage_events,
)
from billing.money import EXACT, TOKENS_PER_PRICE_UNIT, pico_usd_from_usd
from billing.posting import Posting, RatedBatch, charges_for
from billing.pricing import Price, PriceBook, TokenClass
from billing.rating import Charge
from contracts.usage import UsageEvent, decode_usage_event

_EVENTS_PER_TRANSACTION = 500

EventKey = tuple[str, str]  # (tenant_id, event_id)
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class PostResult:
    """Of one batch.  ``num_unpriced`` are among ``num_posted``."""

    num_events: int
    num_posted: int
    num_repeated: int
    num_unpriced: int
    num_dead: int


class Ledger:
    """One writer.  Every method is one or more whole transactions; all raise LedgerUnavailable."""

    def __init__(self, ledger_url: str) -> None:
        self._engine = open_for_posting(ledger_url)

    def close(self) -> None:
        self._engine.dispose()

    def next_offset(self, source_id: str) -> int | None:
        """Where reading ``source_id`` goes on; None: it has never been read."""
        with translated_errors(), self._engine.begin() as connection:
            return _stored_offset(connection, source_id)

    def record_prices(self, price_book: PriceBook) -> None:
        """Remember what each price id means.  Raises PriceBookInvalid if one has changed."""
        with translated_errors(), self._engine.begin() as connection:
            known = {row.price_id: row._asdict() for row in connection.execute(select(prices))}
            new = []
            for price in price_book.prices:
                row = _price_row(price)
                if known.get(price.price_id, row) != row:
                    raise PriceBookInvalid(
                        f"price book: {price.price_id!r} is in the ledger with other terms; "
                        "close it with effective_to and add a price with a new id"
                    )
                if price.price_id not in known:
                    new.append(row)
            _insert(connection, prices, new)

    def post(self, batch: RatedBatch) -> PostResult:
        """Raises OffsetConflict, having changed nothing, if the ledger stands elsewhere."""
        with translated_errors(), self._engine.begin() as connection:
            _advance(connection, batch)
            fresh, known = _insert_events(connection, batch.source_id, batch.postings)
            _insert_entries(connection, fresh)
            dead = [*batch.dead_letters, *_contradictions(connection, known)]
            num_dead = _post_dead_letters(connection, batch.source_id, dead)
        num_events = len(batch.postings) + len(batch.dead_letters)
        return PostResult(
            num_events=num_events,
            num_posted=len(fresh),
            num_repeated=num_events - len(fresh) - num_dead,
            num_unpriced=sum(p.charges is None for p in fresh),
            num_dead=num_dead,
        )

    def post_unpriced(self, price_book: PriceBook) -> int:
        """Rate the events that had no price and now have one; returns how many."""
        num_posted = 0
        after: EventKey = ("", "")
        while True:
            with translated_errors(), self._engine.begin() as connection:
                events = _unpriced_after(connection, after, price_book)
                num_posted += _rate_unpriced(connection, events, price_book)
            if not events:
                return num_posted
            after = (events[-1].tenant_id, events[-1].event_id)


def _stored_offset(connection: Connection, source_id: str) -> int | None:
    query = select(source_offsets.c.next_offset).where(source_offsets.c.source_id == source_id)
    return connection.execute(query).scalar_one_or_none()


def _advance(connection: Connection, batch: RatedBatch) -> None:
    """Compare and set.  A concurrent insert of the same row fails on its key."""
    stored = _stored_offset(connection, batch.source_id)
    if stored != batch.expected_offset:
        raise OffsetConflict(
            batch.source_id, expected_offset=batch.expected_offset, stored_offset=stored
        )
    row = {"source_id": batch.source_id, "next_offset": batch.next_offset}
    if stored is None:
        connection.execute(insert(source_offsets), row)
        return
    changed = connection.execute(
        update(source_offsets)
        .where(source_offsets.c.source_id == batch.source_id)
        .where(source_offsets.c.next_offset == stored)
        .values(next_offset=batch.next_offset)
    )
    if changed.rowcount != 1:
        raise OffsetConflict(
            batch.source_id,
            expected_offset=stored,
            stored_offset=_stored_offset(connection, batch.source_id),
        )


def _insert_events(
    connection: Connection, source_id: str, postings: Sequence[Posting]
) -> tuple[list[Posting], list[Posting]]:
    """(new, those whose key the ledger or this batch already had)."""
    if not postings:
        return [], []
    statement = (
        insert_if_new(usage_events)
        .on_conflict_do_nothing()
        .returning(usage_events.c.tenant_id, usage_events.c.event_id)
    )
    rows = [_event_row(source_id, posting) for posting in postings]
    inserted = {(row[0], row[1]) for row in connection.execute(statement, rows)}
    fresh: list[Posting] = []
    known: list[Posting] = []
    for posting in postings:
        key = _key(posting.event)
        (fresh if key in inserted else known).append(posting)
        inserted.discard(key)
    return fresh, known


def _contradictions(connection: Connection, known: Sequence[Posting]) -> list[DeadLetter]:
    """A repeat is the same event again; anything else under its id must not vanish as one."""
    stored = _stored_payloads(connection, {_key(posting.event) for posting in known})
    return [
        _contradictory(posting)
        for posting in known
        if not _is_same(posting, stored[_key(posting.event)])
    ]


def _is_same(posting: Posting, stored: bytes) -> bool:
    """Equal bytes are the rule; an equal event in other bytes is a repeat as well."""
    return stored == posting.payload or decode_usage_event(stored) == posting.event


def _stored_payloads(connection: Connection, keys: Collection[EventKey]) -> dict[EventKey, bytes]:
    if not keys:
        return {}
    key = (usage_events.c.tenant_id, usage_events.c.event_id)
    query = select(*key, usage_events.c.payload).where(tuple_(*key).in_(keys))
    return {
        (tenant_id, event_id): payload for tenant_id, event_id, payload in connection.execute(query)
    }


def _contradictory(posting: Posting) -> DeadLetter:
    return DeadLetter(
        posting.offset,
        DeadReason.CONTRADICTORY,
        "its event id is in the ledger with other content",
        posting.payload,
    )


def _insert_entries(connection: Connection, postings: Sequence[Posting]) -> None:
    _insert(
        connection,
        ledger_entries,
        [_entry_row(p.event, charge) for p in postings for charge in p.charges or ()],
    )
    _insert(
        connection, unpriced_events, [_unpriced_row(p.event) for p in postings if p.charges is None]
    )


def _post_dead_letters(
    connection: Connection, source_id: str, letters: Sequence[DeadLetter]
) -> int:
    """How many are new: a replay finds its dead letters already there."""
    known = select(dead_letters.c.source_offset).where(dead_letters.c.source_id == source_id)
    offsets = [letter.offset for letter in letters]
    seen = (
        set(connection.scalars(known.where(dead_letters.c.source_offset.in_(offsets))))
        if offsets
        else set()
    )
    fresh = [letter for letter in letters if letter.offset not in seen]
    _insert(
        connection,
        dead_letters,
        [
            {
                "source_id": source_id,
                "source_offset": letter.offset,
                "reason": letter.reason.value,
                "detail": letter.detail,
                "payload": letter.payload,
            }
            for letter in fresh
        ],
    )
    return len(fresh)


def _unpriced_after(
    connection: Connection, after: EventKey, price_book: PriceBook
) -> list[UsageEvent]:
    """The next waiting events of models the book knows, by key."""
    key = tuple_(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
    query = (
        select(usage_events.c.payload)
        .join_from(
            unpriced_events,
            usage_events,
            (usage_events.c.tenant_id == unpriced_events.c.tenant_id)
            & (usage_events.c.event_id == unpriced_events.c.event_id),
        )
        .where(key > after, unpriced_events.c.model.in_(sorted(price_book.models)))
        .order_by(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
        .limit(_EVENTS_PER_TRANSACTION)
    )
    return [decode_usage_event(payload) for payload in connection.scalars(query)]


def _rate_unpriced(
    connection: Connection, events: Sequence[UsageEvent], price_book: PriceBook
) -> int:
    num_posted = 0
    for event in events:
        charges = charges_for(event, price_book)
        if charges is None:
            continue  # the model is known, but not at that instant
        connection.execute(
            delete(unpriced_events)
            .where(unpriced_events.c.tenant_id == event.tenant_id)
            .where(unpriced_events.c.event_id == event.event_id)
        )
        _insert(connection, ledger_entries, [_entry_row(event, charge) for charge in charges])
        num_posted += 1
    return num_posted


def _insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def _key(event: UsageEvent) -> EventKey:
    return event.tenant_id, event.event_id


def _event_row(source_id: str, posting: Posting) -> Row:
    event = posting.event
    return {
        "tenant_id": event.tenant_id,
        "event_id": event.event_id,
        "request_id": event.request_id,
        "model": event.model,
        "occurred_at_us": microseconds(event.occurred_at),
        "input_uncached_tokens": event.input_uncached_tokens,
        "input_cache_read_tokens": event.input_cache_read_tokens,
        "output_text_tokens": event.output_text_tokens,
        "source_id": source_id,
        "source_offset": posting.offset,
        "payload": posting.payload,
    }


def _entry_row(event: UsageEvent, charge: Charge) -> Row:
    return {
        "tenant_id": event.tenant_id,
        "event_id": event.event_id,
        "token_class": charge.token_class.value,
        "occurred_at_us": microseconds(event.occurred_at),
        "model": event.model,
        "tokens": charge.tokens,
        "pico_usd": pico_usd_from_usd(charge.usd),
        "price_id": charge.price_id,
    }


def _unpriced_row(event: UsageEvent) -> Row:
    return {"tenant_id": event.tenant_id, "event_id": event.event_id, "model": event.model}


def _price_row(price: Price) -> Row:
    """``effective_to`` is left out: closing an open price changes no entry it has made."""
    row: Row = {
        "price_id": price.price_id,
        "model": price.model,
        "effective_from_us": microseconds(price.effective_from),
    }
    for token_class in TokenClass:
        usd_per_token = EXACT.divide(
            price.usd_per_million_tokens[token_class], Decimal(TOKENS_PER_PRICE_UNIT)
        )
        row[f"{token_class.value}_pico_usd"] = pico_usd_from_usd(usd_per_token)
    return row
