"""Dead letters again: after an upgrade that understands them, or a limit that was raised.

What can be posted now is, under its own event id, so an event that has come another way meanwhile
is a repeat.  What cannot stays.  Killed in between, it has posted and not marked: the next replay
finds repeats.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, tuple_

from billing.dead_letter import DeadReason
from billing.ledger import Ledger
from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import dead_letter_replays, dead_letters
from billing.posting import RatedBatch, rate_batch
from billing.pricing import PriceBook
from billing.recorded_prices import check_recorded
from billing.records import Batch, Record

_SOURCE: Final = "replay"
_LETTERS_AT_ONCE: Final = 500
_BEGINNING: Final = ("", -1)


@dataclass(frozen=True, slots=True)
class Replayed:
    num_posted: int
    num_repeated: int
    num_left: int


@dataclass(frozen=True, slots=True)
class _Letter:
    source_id: str
    offset: int
    reason: str
    payload: bytes


def replay(ledger: Ledger, reader: LedgerRef, price_book: PriceBook) -> Replayed:
    """Raises LedgerMissing, LedgerUnavailable, OffsetConflict if two replay at once.

    PriceBookInvalid for another ledger's book, having changed nothing.
    """
    with reading(reader) as connection:
        check_recorded(connection, price_book)
    num_posted = num_repeated = num_left = 0
    after = _BEGINNING
    while letters := unreplayed(reader, after):
        after = (letters[-1].source_id, letters[-1].offset)
        stands_at = ledger.next_offset(_SOURCE)
        first = 0 if stands_at is None else stands_at
        records = [Record(first + n, letter.payload) for n, letter in enumerate(letters)]
        rated = rate_batch(Batch(_SOURCE, stands_at, first + len(letters), records), price_book)
        result = ledger.post(
            RatedBatch(_SOURCE, stands_at, rated.next_offset, rated.postings, dead_letters=[])
        )
        done = [letters[posting.offset - first] for posting in rated.postings]
        ledger.mark_replayed([(letter.source_id, letter.offset) for letter in done])
        num_posted += result.num_posted
        num_repeated += result.num_repeated
        num_left += len(letters) - len(done)
    return Replayed(num_posted, num_repeated, num_left)


def unreplayed(ledger: LedgerRef, after: tuple[str, int]) -> list[_Letter]:
    """The next that another version might understand: a broken line it would not, either."""
    columns = dead_letters.c
    is_same = (dead_letter_replays.c.source_id == columns.source_id) & (
        dead_letter_replays.c.source_offset == columns.source_offset
    )
    query = (
        select(columns.source_id, columns.source_offset, columns.reason, columns.payload)
        .outerjoin(dead_letter_replays, is_same)
        .where(dead_letter_replays.c.source_id.is_(None))
        .where(columns.reason.not_in((DeadReason.CORRUPT, DeadReason.CONTRADICTORY)))
        .where(tuple_(columns.source_id, columns.source_offset) > after)
        .order_by(columns.source_id, columns.source_offset)
        .limit(_LETTERS_AT_ONCE)
    )
    with reading(ledger) as connection:
        return [_Letter(*row) for row in connection.execute(query)]
