"""Posts events, entries and source offset in one transaction: at least once in, exactly once kept.

What makes it once: the key ``(tenant_id, event_id)`` has no expiry, and the offset is compared
before it is set, so a second consumer or a zombie cannot post from a place the ledger has left.
Entries are only added.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, select, tuple_, update

from billing.audit import QuotaLoss
from billing.audit_sums import BootSums
from billing.boot_sums import keep_sums
from billing.bulk_insert import (
    Row,
    in_parts,
    insert_once,
    insert_rows,
)
from billing.daily_usage import add_charges
from billing.dead_letter import DeadLetter, DeadReason
from billing.errors import HasLateReports, OffsetConflict
from billing.late import LatestInvoices, latest_invoices
from billing.late_reports import LateReport, post_difference, post_late_reports, reported_events
from billing.ledger_database import (
    alone,
    books_alone,
    books_shared,
    open_for_posting,
    translated_errors,
    writing,
)
from billing.ledger_schema import (
    dead_letter_replays,
    dead_letters,
    ledger_entries,
    microseconds,
    quota_acknowledgements,
    source_offsets,
    unpriced_events,
    usage_events,
)
from billing.posting import Posting, RatedBatch, charges_for
from billing.pricing import PriceBook
from billing.rating import Charge
from billing.recorded_prices import record_prices
from billing.records import EventKey
from billing.staging import post_staged
from contracts.usage import UsageEvent, decode_usage_event

_EVENTS_PER_TRANSACTION = 500


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class PostResult:
    """Of one batch.  ``num_unpriced`` and ``num_late`` are among ``num_posted``."""

    num_events: int
    num_posted: int
    num_repeated: int
    num_unpriced: int
    num_dead: int
    num_late: int = 0  # for an invoice that has been issued: the next one will have them
    unpriced_models: frozenset[str] = frozenset()
    newest_at: datetime | None = None  # the end of the last of them; None: there are none
    charged_pico_usd: int = 0


class Ledger:
    """One writer.  Every method is one or more whole transactions; all raise LedgerUnavailable.

    What writes raises LedgerMigrated, having changed nothing, once another version has been here.
    """

    def __init__(self, ledger_url: str, now: Callable[[], datetime] = utc_now) -> None:
        self._engine = open_for_posting(ledger_url)
        self._now = now

    def close(self) -> None:
        self._engine.dispose()

    def next_offset(self, source_id: str) -> int | None:
        """Where reading ``source_id`` goes on; None: it has never been read."""
        with translated_errors(), self._engine.begin() as connection:
            return _stored_offset(connection, source_id)

    def record_prices(self, price_book: PriceBook) -> None:
        """Remember what each price id means.  Raises PriceBookInvalid if one has changed."""
        with writing(self._engine, alone) as connection:
            record_prices(connection, price_book)

    def post(self, batch: RatedBatch) -> PostResult:
        """Raises OffsetConflict, having changed nothing, if the ledger stands elsewhere."""
        posted_at_us = microseconds(self._now())
        with suppress(HasLateReports), writing(self._engine, books_shared) as connection:
            return _post(connection, batch, posted_at_us, _refuse_reports)
        with writing(self._engine, books_alone) as connection:
            return _post(connection, batch, posted_at_us, post_late_reports)

    def acknowledge(self, tenant_id: str, loss: QuotaLoss) -> bool:
        """That the quota's totals lack so much of what is billed.  False: as said before."""
        row = {
            "tenant_id": tenant_id,
            "lost_before_us": microseconds(loss.since),
            "num_requests": loss.missing.num_requests,
            "num_tokens": loss.missing.num_tokens,
            "posted_at_us": microseconds(self._now()),
        }
        with writing(self._engine, books_shared) as connection:
            return bool(connection.execute(insert_once(quota_acknowledgements), row).rowcount)

    def keep_sums(self, lacking: Sequence[BootSums]) -> None:
        """Of events that are here without any: ``boot_sums.lacking_sums``."""
        with writing(self._engine, books_shared) as connection:
            keep_sums(connection, lacking)

    def mark_replayed(self, letters: Sequence[tuple[str, int]]) -> None:
        """Dead letters, by source and offset, that have been posted after all."""
        replayed_at_us = microseconds(self._now())
        with writing(self._engine, books_shared) as connection:
            rows = [(source_id, offset, replayed_at_us) for source_id, offset in letters]
            insert_rows(connection, dead_letter_replays, rows)

    def post_unpriced(
        self, price_book: PriceBook, note_progress: Callable[[], None] = lambda: None
    ) -> int:
        """Rate the events that had no price and now have one; returns how many.

        ``note_progress`` is called after each transaction: of many events there are many.
        """
        num_posted = 0
        after: EventKey = ("", "")
        while True:
            # Alone: they come to days that others add to.
            with writing(self._engine, books_alone) as connection:
                events = _unpriced_after(connection, after)
                at_us = microseconds(self._now())
                num_posted += _rate_unpriced(connection, events, price_book, at_us)
            note_progress()
            if not events:
                return num_posted
            after = (events[-1].tenant_id, events[-1].event_id)


_PostReports = Callable[[Connection, Sequence[LateReport], int], list[Posting]]


def _refuse_reports(
    _connection: Connection, _reports: Sequence[LateReport], _posted_at_us: int
) -> list[Posting]:
    """They come to days that a batch has been added to: two who do so wait for each other."""
    raise HasLateReports


def _post(
    connection: Connection, batch: RatedBatch, posted_at_us: int, post_reports: _PostReports
) -> PostResult:
    _advance(connection, batch)
    posted = post_staged(connection, batch.source_id, batch.postings, posted_at_us)
    reports, contradicting = _other_contents(posted.repeats)
    if reports:
        contradicting += post_reports(connection, reports, posted_at_us)
    dead = [*batch.dead_letters, *map(_contradictory, contradicting)]
    num_dead = _post_dead_letters(connection, batch.source_id, dead)
    fresh = posted.fresh
    num_events = len(batch.postings) + len(batch.dead_letters)
    return PostResult(
        num_events=num_events,
        num_posted=len(fresh),
        num_repeated=num_events - len(fresh) - num_dead,
        num_unpriced=sum(p.charges is None for p in fresh),
        num_dead=num_dead,
        num_late=posted.num_late,
        unpriced_models=frozenset(p.event.model for p in fresh if p.charges is None),
        newest_at=max((p.event.occurred_at for p in batch.postings), default=None),
        charged_pico_usd=sum(c.pico_usd for p in fresh for c in p.charges or ()),
    )


def _stored_offset(connection: Connection, source_id: str) -> int | None:
    query = select(source_offsets.c.next_offset).where(source_offsets.c.source_id == source_id)
    return connection.execute(query).scalar_one_or_none()


def _advance(connection: Connection, batch: RatedBatch) -> None:
    """Compare and set.  Of two that are first at once, the other finds where this one stands."""
    stored = _stored_offset(connection, batch.source_id)
    if stored != batch.expected_offset:
        raise OffsetConflict(
            batch.source_id, expected_offset=batch.expected_offset, stored_offset=stored
        )
    row = {"source_id": batch.source_id, "next_offset": batch.next_offset}
    if stored is None:
        changed = connection.execute(insert_once(source_offsets), row)
    else:
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


def _other_contents(
    repeats: Sequence[tuple[Posting, bytes]],
) -> tuple[list[LateReport], list[Posting]]:
    """A repeat is the same event again; anything else under its id must not vanish as one.

    But for what an auditor has recovered: what its gateway says after all stands beside it.
    """
    reports: list[LateReport] = []
    contradicting: list[Posting] = []
    for posting, payload in repeats:
        if payload == posting.payload or posting.event.is_recovered:
            continue
        event = decode_usage_event(payload)
        if event.is_recovered:
            reports.append(LateReport(event, posting))
        elif event != posting.event:  # an equal event in other bytes is a repeat as well
            contradicting.append(posting)
    return reports, contradicting


def _contradictory(posting: Posting) -> DeadLetter:
    return DeadLetter(
        posting.offset,
        DeadReason.CONTRADICTORY,
        "its event id is in the ledger with other content",
        posting.payload,
    )


def _post_dead_letters(
    connection: Connection, source_id: str, letters: Sequence[DeadLetter]
) -> int:
    """How many are new: a replay finds its dead letters already there."""
    known = select(dead_letters.c.source_offset).where(dead_letters.c.source_id == source_id)
    seen = {
        offset
        for some in in_parts([letter.offset for letter in letters])
        for offset in connection.scalars(known.where(dead_letters.c.source_offset.in_(some)))
    }
    fresh = [letter for letter in letters if letter.offset not in seen]
    insert_rows(connection, dead_letters, [_dead_letter_row(source_id, each) for each in fresh])
    return len(fresh)


def _unpriced_after(connection: Connection, after: EventKey) -> list[UsageEvent]:
    """The next waiting events, by key: their rows do not say whose adapters' they are."""
    key = tuple_(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
    query = (
        select(usage_events.c.payload)
        .join_from(
            unpriced_events,
            usage_events,
            (usage_events.c.tenant_id == unpriced_events.c.tenant_id)
            & (usage_events.c.event_id == unpriced_events.c.event_id),
        )
        .where(key > after)
        .order_by(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
        .limit(_EVENTS_PER_TRANSACTION)
    )
    return [decode_usage_event(payload) for payload in connection.scalars(query)]


def _rate_unpriced(
    connection: Connection,
    events: Sequence[UsageEvent],
    price_book: PriceBook,
    posted_at_us: int,
) -> int:
    late = latest_invoices(connection, {event.tenant_id for event in events})
    recovered = [_key(event) for event in events if event.is_recovered]
    reported = reported_events(connection, recovered)  # used by those keys, as is known by now
    rated: list[tuple[UsageEvent, Sequence[Charge]]] = []
    for event in events:
        told = reported.get(_key(event), event)  # its gateway may know another tier
        charges, worth = charges_for(event, price_book), charges_for(told, price_book)
        if charges is None or worth is None:
            continue  # neither it nor what it adapts is known, or not at that instant
        connection.execute(
            delete(unpriced_events)
            .where(unpriced_events.c.tenant_id == event.tenant_id)
            .where(unpriced_events.c.event_id == event.event_id)
        )
        insert_rows(connection, ledger_entries, _entry_rows(event, charges, late))
        difference = sum(c.pico_usd for c in worth) - sum(c.pico_usd for c in charges)
        post_difference(connection, event, difference, posted_at_us)
        rated.append((told, worth))
    add_charges(connection, rated)
    return len(rated)


def _key(event: UsageEvent) -> EventKey:
    return event.tenant_id, event.event_id


# Rows, in the order of their table's columns


def _entry_rows(event: UsageEvent, charges: Sequence[Charge], late: LatestInvoices) -> list[Row]:
    tenant_id, event_id, model = event.tenant_id, event.event_id, event.model
    at_us = microseconds(event.occurred_at)
    late_after = late.number_after(tenant_id, at_us)
    return [
        (
            tenant_id,
            at_us,
            event_id,
            charge.token_class.value,
            model,
            charge.tokens,
            charge.pico_usd,
            charge.price_id,
            late_after,
        )
        for charge in charges
    ]


def _dead_letter_row(source_id: str, letter: DeadLetter) -> Row:
    return source_id, letter.offset, letter.reason.value, letter.detail, letter.payload
