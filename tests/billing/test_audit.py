"""The checker, checked: what was dropped, doubled, mispriced or left behind is found, no more."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.audit import Account, Kind, Witness
from billing.auditor import Part
from billing.journals import read_journals
from billing.ledger import Ledger
from billing.pricing import Price, PriceBook, TokenClass
from billing.recovery import recover
from contracts.replica_usage import encode_replica_usage
from contracts.spool import frame
from contracts.usage import Outcome, UsageSource
from tests.billing.audited_books import EVENTS, GRACE, NOW, Books, event, record
from tests.billing.databases import execute
from tests.billing.usage_events import (
    BOOK,
    MODEL,
    NOON,
    PRICE,
    SEGMENT,
    line,
    usage,
    write_segment,
)

LATEST = NOON - timedelta(days=1)


@pytest.fixture(
    params=[("sqlite", None), ("sqlite", LATEST), ("postgresql", None)],
    ids=["sqlite", "sqlite by sums", "postgresql"],
)
def books(request: pytest.FixtureRequest, ledger_url: str, tmp_path: Path) -> Iterator[Books]:
    """Counted anew, event by event, or by the sums that are kept: both find the same."""
    database, since = request.param
    if database == "postgresql":
        ledger_url = request.getfixturevalue("postgres").new_database()
    with closing(Ledger(ledger_url)) as ledger:
        ledger.record_prices(BOOK)
        found = Books(ledger, ledger_url, tmp_path)
        found.audited_since = since
        yield found


def test_books_that_agree_have_no_findings(books: Books) -> None:
    books.post(*EVENTS)
    report = books.audit()
    assert report.findings == []
    acme = report.accounts["acme"]
    assert acme.engine == acme.quota == acme.ledger == Account(3, 306)
    assert (acme.waiting, acme.recovered) == (Account(), Account())


def test_what_is_still_in_the_spool_is_on_its_way_and_no_difference(books: Books) -> None:
    books.post(EVENTS[0])
    write_segment(books.spool_dir, SEGMENT.replace("0a", "0c"), *map(line, EVENTS))
    report = books.audit()
    assert report.findings == []
    assert report.num_waiting == 2
    assert report.accounts["acme"].waiting == Account(2, 205)


def test_a_dropped_event_is_found_from_three_sides(books: Books) -> None:
    books.post(EVENTS[0], EVENTS[2])
    assert books.found() == [
        (Kind.SEQUENCE_GAP, "0a"),
        (Kind.NO_EVENT, "event-2"),
        (Kind.QUOTA_DIFFERS, "quota"),
    ]
    assert books.audit().findings[0].detail == "1 missing: 2 to 2"


def test_what_was_served_within_the_grace_is_counted_and_no_difference(books: Books) -> None:
    books.post(*EVENTS)
    just_now = event(4, admitted_at=NOW - GRACE / 2, occurred_at=NOW - GRACE / 2)
    books.records.append(record(just_now))
    report = books.audit()
    assert (report.findings, report.num_young) == ([], 1)


def test_a_dropped_last_event_is_found_though_it_leaves_no_gap(books: Books) -> None:
    books.post(EVENTS[0], EVENTS[1])
    assert books.found() == [(Kind.NO_EVENT, "event-3"), (Kind.QUOTA_DIFFERS, "quota")]


def test_a_doubled_event_is_found_from_three_sides(books: Books) -> None:
    books.post(*EVENTS, msgspec.structs.replace(EVENTS[1], event_id="again"))
    assert sorted(books.found()) == sorted(
        [
            (Kind.NUMBERED_TWICE, "0a"),
            (Kind.NO_WITNESS, "again"),
            (Kind.QUOTA_DIFFERS, "quota"),
        ]
    )


def test_a_doubled_event_under_a_number_of_its_own_is_found_as_well(books: Books) -> None:
    books.post(*EVENTS, msgspec.structs.replace(EVENTS[1], event_id="again", gateway_seq=4))
    assert books.found() == [(Kind.NO_WITNESS, "again"), (Kind.QUOTA_DIFFERS, "quota")]


def test_numbers_that_are_there_twice_and_numbers_that_are_lost_do_not_make_up_for_it(
    books: Books,
) -> None:
    """As many events as numbers, and the same sum."""
    books.quota = None
    books.records = []
    numbers = (1, 2, 2, 5, 5, 6)  # 3 and 4 are lost
    books.post(*(usage(n, gateway_seq=number) for n, number in enumerate(numbers)))
    assert books.found() == [(Kind.SEQUENCE_GAP, "0a"), (Kind.NUMBERED_TWICE, "0a")]


def test_sums_that_are_not_their_events_are_found_by_an_audit_of_all(books: Books) -> None:
    books.post(*EVENTS)
    execute(books.ledger_url, "UPDATE daily_usage SET output_text_tokens = output_text_tokens + 1")
    found = (Kind.SUMS_DIFFER, "daily usage")
    if books.audited_since is None:
        assert books.found() == [found]
    else:  # told beside the quota, as every other difference of theirs
        assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")]


def test_numbers_that_an_earlier_version_posted_without_their_sums_are_no_gap(
    books: Books,
) -> None:
    """It runs beside this one for as long as it is replaced."""
    books.post(*EVENTS[:2])
    execute(books.ledger_url, "DELETE FROM gateway_boots")
    books.post(EVENTS[2])
    assert books.found() == []


@pytest.mark.parametrize("is_waiting", [False, True], ids=["posted", "on its way"])
def test_numbers_that_an_earlier_version_posted_days_before_or_after_are_no_gap(
    books: Books, is_waiting: bool
) -> None:
    """Nor is what is really lacking hidden by it."""
    days = iter([NOW, NOW + timedelta(days=3)])
    with closing(Ledger(books.ledger_url, lambda: next(days))) as books.ledger:
        books.post(*EVENTS[:2])
        execute(books.ledger_url, "DELETE FROM gateway_boots")
        if is_waiting:
            write_segment(books.spool_dir, SEGMENT.replace("0a", "0c"), line(EVENTS[2]))
        else:
            books.post(EVENTS[2])
        assert books.found() == []
        books.quota, books.records = None, []
        last = event(5)
        write_segment(books.spool_dir, SEGMENT.replace("0a", "0d"), line(last))
        assert books.found() == [(Kind.SEQUENCE_GAP, "0a")]
        assert books.audit().findings[0].detail == "1 missing: 4 to 4"


@pytest.mark.parametrize("change", ["num_events = num_events + 1", "sum_numbers = sum_numbers + 1"])
def test_sums_of_numbers_that_are_not_their_events_are_found_by_an_audit_of_all(
    books: Books, change: str
) -> None:
    books.post(*EVENTS)
    execute(books.ledger_url, f"UPDATE gateway_boots SET {change}")
    is_whole = books.audited_since is None
    assert books.found() == ([(Kind.SUMS_DIFFER, "0a")] if is_whole else [])


def test_what_is_charged_twice_is_found_by_an_audit_of_all(books: Books) -> None:
    """No key refuses the entries of an event at another instant, and invoices would sum them."""
    books.post(*EVENTS)
    execute(
        books.ledger_url,
        "INSERT INTO ledger_entries SELECT tenant_id, occurred_at_us + 1, event_id, token_class, "
        "model, tokens, pico_usd, price_id, late_after_invoice FROM ledger_entries "
        "WHERE event_id = 'event-1'",
    )
    found = [(Kind.SUMS_DIFFER, "ledger entries"), (Kind.SUMS_DIFFER, "money by day")]
    assert books.found() == (found if books.audited_since is None else [])


def test_money_of_days_that_no_entry_makes_is_found_by_an_audit_of_all(books: Books) -> None:
    books.post(*EVENTS)
    execute(books.ledger_url, "UPDATE daily_usage SET micro_usd = micro_usd + 1000000")
    is_whole = books.audited_since is None
    assert books.found() == ([(Kind.SUMS_DIFFER, "money by day")] if is_whole else [])


def test_a_mispriced_event_is_found(books: Books) -> None:
    """Rated by terms that are not those of its price id, as a defect in rating would."""
    rates = {c: usd * 2 for c, usd in PRICE.usd_per_million_tokens.items()}
    dearer = Price(PRICE.price_id, MODEL, PRICE.effective_from, None, rates)
    books.post(EVENTS[0], EVENTS[2])
    books.post(EVENTS[1], book=PriceBook([dearer]))
    assert books.found() == [(Kind.MISPRICED, "event-2")]


def test_an_event_charged_by_another_price_than_its_instants_is_found(books: Books) -> None:
    rates = dict.fromkeys(
        (TokenClass.INPUT_UNCACHED, TokenClass.INPUT_CACHE_READ, TokenClass.OUTPUT_TEXT),
        Decimal(1),
    )
    other = PriceBook([Price("other", MODEL, PRICE.effective_from, None, rates)])
    books.ledger.record_prices(other)
    books.post(*EVENTS[:2])
    books.post(EVENTS[2], book=other)
    assert books.found() == [(Kind.MISPRICED, "event-3")]


def test_an_event_without_a_price_waits_and_is_no_difference(books: Books) -> None:
    books.post(*EVENTS[:2], msgspec.structs.replace(EVENTS[2], model="new"))
    report = books.audit()
    assert report.findings == []
    assert report.num_unpriced == 1


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({"output_text_tokens": 3}, True),
        ({"output_text_tokens": 1}, True),
        ({"input_uncached_tokens": 35, "input_cache_read_tokens": 65}, True),
        ({"output_text_tokens": 1, "usage_source": UsageSource.COUNTED}, False),
        ({"input_uncached_tokens": 90, "usage_source": UsageSource.COUNTED}, False),
        ({"output_text_tokens": 3, "usage_source": UsageSource.COUNTED}, True),
        ({"output_text_tokens": 3, "usage_source": UsageSource.PARTIAL}, True),
        (
            {
                "input_uncached_tokens": 0,
                "input_cache_read_tokens": 0,
                "output_text_tokens": 0,
                "outcome": Outcome.UPSTREAM_FAILED,
            },
            False,
        ),
    ],
    ids=[
        "too many",
        "too few",
        "as many of other classes",
        "fewer, counted by the gateway",
        "its estimate of a prompt",
        "more than was generated, counted by the gateway",
        "more than was generated, of an unfinished answer",
        "failed, so not billed",
    ],
)
def test_an_event_that_says_other_than_its_replica_is_found(
    books: Books, changes: dict[str, object], is_found: bool
) -> None:
    books.post(EVENTS[0], msgspec.structs.replace(EVENTS[1], **changes), EVENTS[2])
    books.quota = None
    assert books.found() == ([(Kind.COUNTS_DIFFER, "event-2")] if is_found else [])


def test_an_answer_that_took_two_replicas_is_billed_once_and_no_difference(books: Books) -> None:
    """The second was given the first's tokens: it read them, and nobody pays for that."""
    whole = msgspec.structs.replace(EVENTS[2], output_text_tokens=30, attempt=2)
    first = record(whole, output_text_tokens=10, is_final=False, finish_reasons=(None,))
    then = record(
        whole,
        request_id="request-3-1",
        input_uncached_tokens=110,
        input_cache_read_tokens=0,
        output_text_tokens=20,
        resumed_tokens=10,
        arrived_at=NOON + timedelta(seconds=1),
    )
    books.post(*EVENTS[:2], whole)
    books.records[2:] = [first, then]
    books.quota = None
    assert books.found() == []


def test_an_event_from_before_the_journals_beginning_needs_no_witness(books: Books) -> None:
    """A journal keeps the latest records, within a bound."""
    old = event(4, admitted_at=NOON - timedelta(seconds=1))
    books.post(*EVENTS, old)
    books.quota = None
    assert books.found() == []


def test_a_journal_is_kept_by_the_ends_of_requests(books: Books) -> None:
    """A long one that began before all others says nothing of those that had ended before it."""
    books.records[0] = record(EVENTS[0], arrived_at=NOON - timedelta(minutes=9))
    forgotten = event(
        4, admitted_at=NOON - timedelta(minutes=5), occurred_at=NOON - timedelta(minutes=4)
    )
    books.post(*EVENTS, forgotten)
    books.quota = None
    assert books.found() == []


def test_an_event_id_of_two_tenants_is_two_events(books: Books) -> None:
    """Billed to one and served for both: the other is missing, and on its way it is no repeat."""
    other = event(4, event_id=EVENTS[1].event_id, tenant_id="globex")
    books.post(*EVENTS)
    books.quota = None
    books.records.append(record(other))
    (missing,) = books.audit().findings
    assert (missing.kind, missing.tenant_id) == (Kind.NO_EVENT, "globex")
    write_segment(books.spool_dir, SEGMENT.replace("0a", "0c"), line(other), line(other))
    report = books.audit()
    assert (report.findings, report.num_waiting) == ([], 1)
    assert recover(books.ledger, books.ledger_url, BOOK, report.missing).num_posted == 0


def test_an_event_that_still_waits_for_a_price_that_is_known_is_no_difference(
    books: Books,
) -> None:
    """Between the adoption of a book and the rating of what it prices."""
    books.post(*EVENTS[:2])
    books.post(EVENTS[2], book=PriceBook([]))
    report = books.audit()
    assert (report.findings, report.num_unpriced) == ([], 1)


def test_a_quota_that_is_told_more_meanwhile_differs_only_by_what_it_was_not(
    books: Books,
) -> None:
    """Three are billed: one that had been told of two, and then of four, may have known them."""
    books.post(*EVENTS)
    told = iter([Account(2, 204), Account(4, 408)])
    books.ask_quota = lambda: {"acme": next(told)}  # type: ignore[method-assign]
    assert books.found() == []
    told = iter([Account(4, 408), Account(4, 408)])
    assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")]
    told = iter([Account(1, 100), Account(2, 204)])
    assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")]


def test_what_is_served_after_the_ledger_was_read_is_no_difference(books: Books) -> None:
    """Billed and witnessed while the audit reads: the journals are read last."""
    books.post(*EVENTS)
    books.quota = None
    new = event(4, admitted_at=NOW, occurred_at=NOW)

    def journals() -> list[Witness]:
        books.post(new)
        return [Witness("replica-0", [*books.records, record(new)])]

    books.journals = journals  # type: ignore[method-assign]
    assert books.found() == []


@pytest.mark.parametrize(
    ("num_unread", "num_told", "is_found"),
    [(1, 4, False), (1, 5, True), (None, 5, False), (0, 4, True), (1, 2, True), (None, 2, True)],
)
def test_what_the_brokers_still_have_is_no_difference_of_the_quota(
    books: Books, num_unread: int | None, num_told: int, is_found: bool
) -> None:
    """Of three that are billed: as many more as may be on their way, and never fewer."""
    books.post(*EVENTS)
    books.num_unread = num_unread
    books.quota = {"acme": Account(num_told, 102 * num_told)}
    assert books.found() == ([(Kind.QUOTA_DIFFERS, "quota")] if is_found else [])


def test_a_quota_that_cannot_be_asked_is_not_compared(books: Books) -> None:
    books.post(*EVENTS)
    books.quota = None
    report = books.audit()
    assert report.findings == []
    assert report.accounts["acme"].quota is None
    assert report.not_compared(has_quota_store=True) == [Part.QUOTA]


def test_a_quota_that_cannot_be_asked_is_missed_of_an_empty_ledger_as_well(books: Books) -> None:
    books.quota, books.records = None, []
    report = books.audit()
    assert report.accounts == {}
    assert report.not_compared(has_quota_store=True) == [Part.QUOTA]


def test_a_request_that_may_still_be_relayed_is_not_missing(books: Books) -> None:
    """The engine is done long before a slow client is."""
    late = event(4, occurred_at=NOW - GRACE + timedelta(seconds=1))
    books.post(*EVENTS)
    books.records.append(record(late))
    assert books.found() == []


def test_journals_are_read_whole_but_for_what_is_torn(tmp_path: Path) -> None:
    lines: Sequence[bytes] = [frame(encode_replica_usage(record(e))) for e in EVENTS]
    write_segment(tmp_path / "replica-0", SEGMENT, *lines, b"deadbeef {}\n", lines[0][:-5])
    write_segment(tmp_path / "replica-1", SEGMENT, *lines[:1])
    (tmp_path / "a file").touch()
    witnesses = read_journals(tmp_path)
    assert [(w.replica, len(w.records)) for w in witnesses] == [("replica-0", 3), ("replica-1", 1)]
    assert read_journals(tmp_path / "none") == []
