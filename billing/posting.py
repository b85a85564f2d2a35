"""Decode, then rate: a batch of raw records becomes what the ledger is to post.  No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from billing.dead_letter import DeadLetter, DeadReason
from billing.money import MAX_TOKENS_PER_CLASS
from billing.pricing import PriceBook
from billing.rating import Charge, charged_counts, price_for, rate, token_counts
from billing.records import Batch, Record
from contracts.errors import ContractError
from contracts.names import tenant_id
from contracts.usage import UsageEvent, decode_usage_event

_MAX_TEXT_CHARS = 512
_TEXTS = ("event_id", "request_id", "model", "key_id", "tier", "gateway_boot_id")
_texts_of = attrgetter(*_TEXTS)
_MAX_SEQ = 2**63 - 1
# Outside these a timestamp is a broken clock, and arithmetic on it may leave datetime's range.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)


class Posting(msgspec.Struct, frozen=True, gc=False):  # made for every event
    offset: int
    event: UsageEvent
    payload: bytes  # the event as it came, fields of later versions included
    charges: tuple[Charge, ...] | None  # None: no price is known; empty: nothing to pay for


@dataclass(frozen=True, slots=True)
class RatedBatch:
    source_id: str
    expected_offset: int | None
    next_offset: int
    postings: Sequence[Posting]
    dead_letters: Sequence[DeadLetter]


def rate_batch(batch: Batch, price_book: PriceBook) -> RatedBatch:
    """Every record comes out once: as a posting or as a dead letter."""
    outcomes = [_outcome(record, price_book) for record in batch.records]
    return RatedBatch(
        source_id=batch.source_id,
        expected_offset=batch.expected_offset,
        next_offset=batch.next_offset,
        postings=[o for o in outcomes if isinstance(o, Posting)],
        dead_letters=[o for o in outcomes if isinstance(o, DeadLetter)],
    )


def charges_for(event: UsageEvent, price_book: PriceBook) -> tuple[Charge, ...] | None:
    """None: unpriced.  An event without tokens owes nothing under any price."""
    price = price_for(event, price_book)
    if price is None:
        return None if any(charged_counts(event)) else ()
    return rate(event, price)


def _outcome(record: Record, price_book: PriceBook) -> Posting | DeadLetter:
    if record.fault is not None:
        return DeadLetter(record.offset, DeadReason.CORRUPT, record.fault, record.payload)
    try:
        event = decode_usage_event(record.payload)
    except ContractError as exc:
        return DeadLetter(record.offset, DeadReason.UNDECODABLE, str(exc), record.payload)
    fault = _implausible(event)
    if fault is not None:
        return DeadLetter(record.offset, DeadReason.IMPLAUSIBLE, fault, record.payload)
    return Posting(record.offset, event, record.payload, charges_for(event, price_book))


def _implausible(event: UsageEvent) -> str | None:
    """Why the ledger cannot hold ``event``; None: it can."""
    try:
        tenant_id(event.tenant_id)
    except ContractError as exc:
        return str(exc)
    texts = _texts_of(event)
    if not (
        "".join(texts).isprintable() and all(texts) and max(map(len, texts)) <= _MAX_TEXT_CHARS
    ):
        return _wrong_text(texts)
    tokens = token_counts(event)
    if max(tokens) > MAX_TOKENS_PER_CLASS:
        return f"expected at most {MAX_TOKENS_PER_CLASS} tokens of one class in a request"
    if event.settled_tokens is not None and event.settled_tokens != sum(tokens):
        return f"expected classes that sum to {event.settled_tokens}, got {sum(tokens)}"
    if event.gateway_seq > _MAX_SEQ:
        return f"expected a gateway_seq of at most {_MAX_SEQ}"
    if not _EARLIEST <= event.occurred_at < _LATEST:
        return f"expected occurred_at from {_EARLIEST:%Y} to {_LATEST:%Y}, got {event.occurred_at}"
    return None


def _wrong_text(texts: Sequence[str]) -> str | None:
    for name, found in zip(_TEXTS, texts, strict=True):
        if not 0 < len(found) <= _MAX_TEXT_CHARS or not found.isprintable():
            return (
                f"expected {name} of 1 to {_MAX_TEXT_CHARS} printable characters, got {len(found)}"
            )
    return None
