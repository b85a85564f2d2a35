"""Every record becomes a posting or a dead letter; none stops the others."""

import re
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.dead_letter import DeadReason
from billing.ledger import Ledger
from billing.lookup import totals
from billing.money import MAX_TOKENS_PER_CLASS
from billing.posting import RatedBatch, rate_batch
from billing.records import Batch, Record
from contracts.usage import encode_usage_event
from tests.billing.usage_events import BOOK, usage


def rated(*payloads: bytes, fault: str | None = None) -> RatedBatch:
    records = [Record(n, payload, fault) for n, payload in enumerate(payloads)]
    return rate_batch(Batch("spool/x", None, len(payloads), records), BOOK)


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(usage(1)), **fields})


def huge(field: str) -> bytes:
    """A number that no 64-bit integer holds; JSON has no such limit."""
    return re.sub(rb'("%s":)\d+' % field.encode(), rb"\g<1>%d" % 2**80, changed())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", DeadReason.UNDECODABLE),
        (b"{}", DeadReason.UNDECODABLE),
        (b"\xff\xfe", DeadReason.UNDECODABLE),
        (changed(type="usage.recorded.v2"), DeadReason.UNDECODABLE),
        (changed(output_text_tokens=-1), DeadReason.UNDECODABLE),
        (changed(output_text_tokens=1.5), DeadReason.UNDECODABLE),
        (b'{"type":1e999}', DeadReason.UNDECODABLE),
        (changed(occurred_at="2026-11-29T12:00:00"), DeadReason.UNDECODABLE),
        (changed(output_text_tokens=MAX_TOKENS_PER_CLASS + 1), DeadReason.IMPLAUSIBLE),
        (changed(output_text_tokens=2**63), DeadReason.IMPLAUSIBLE),
        (huge("output_text_tokens"), DeadReason.IMPLAUSIBLE),
        (changed(settled_tokens=108), DeadReason.IMPLAUSIBLE),  # 107 by its classes
        (huge("gateway_seq"), DeadReason.IMPLAUSIBLE),
        (changed(tenant_id="Not A Tenant"), DeadReason.IMPLAUSIBLE),
        (changed(event_id=""), DeadReason.IMPLAUSIBLE),
        (changed(request_id="a\x00b"), DeadReason.IMPLAUSIBLE),
        (changed(model="m" * 10_000), DeadReason.IMPLAUSIBLE),
        (changed(occurred_at="0001-01-01T00:00:00+14:00"), DeadReason.IMPLAUSIBLE),
        (changed(occurred_at="9999-12-31T23:59:59-14:00"), DeadReason.IMPLAUSIBLE),
    ],
)
def test_a_bad_record_is_a_dead_letter_beside_good_postings(
    payload: bytes, reason: DeadReason
) -> None:
    batch = rated(encode_usage_event(usage(1)), payload, encode_usage_event(usage(2)))
    assert [posting.offset for posting in batch.postings] == [0, 2]
    assert [(d.offset, d.reason, d.payload) for d in batch.dead_letters] == [(1, reason, payload)]


def test_a_record_its_source_could_not_read_keeps_the_reason() -> None:
    letter = rated(b"raw", fault="checksum").dead_letters[0]
    assert (letter.reason, letter.detail, letter.payload) == (
        DeadReason.CORRUPT,
        "checksum",
        b"raw",
    )


def test_an_unknown_field_is_no_fault() -> None:
    assert len(rated(changed(added_later=1)).postings) == 1


def test_the_price_is_that_of_the_instant_the_request_ended() -> None:
    before = usage(1, occurred_at=datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC))
    postings = rated(encode_usage_event(before), encode_usage_event(usage(2))).postings
    assert postings[0].charges is None
    assert postings[1].charges is not None


def test_a_huge_number_that_billing_does_not_use_stops_nothing(
    ledger: Ledger, ledger_url: str
) -> None:
    batch = rated(huge("reserved_tokens"), huge("reserved_tokens"), huge("gateway_seq"))
    result = ledger.post(batch)
    assert (result.num_posted, result.num_repeated, result.num_dead) == (1, 1, 1)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_every_record_comes_out_once(payloads: list[bytes]) -> None:
    batch = rated(*payloads)
    offsets = [d.offset for d in batch.dead_letters] + [p.offset for p in batch.postings]
    assert sorted(offsets) == list(range(len(payloads)))


def test_dead_letters_are_posted_once_and_a_replay_calls_them_repeats(
    ledger: Ledger, ledger_url: str
) -> None:
    first = ledger.post(rated(b"junk", encode_usage_event(usage(1))))
    again = ledger.post(
        rate_batch(Batch("spool/x", 2, 3, [Record(0, b"junk"), Record(2, b"other junk")]), BOOK)
    )
    assert (first.num_dead, first.num_posted) == (1, 1)
    assert (again.num_dead, again.num_repeated) == (1, 1)
    assert totals(ledger_url, "acme").num_requests == 1
