"""Sums by day, dead letters that are posted after all, and what another book would charge."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

from billing.dead_letter import DeadLetter, DeadReason
from billing.dry_run import dry_run
from billing.ledger import Ledger
from billing.lookup import totals
from billing.periods import month_period
from billing.posting import RatedBatch, rate_batch
from billing.pricing import Price, PriceBook
from billing.records import Batch, Record
from billing.replay import replay
from billing.unpriced import unpriced_models
from billing.usage_report import Grouping, UsageQuery, usage_csv, usage_json, usage_rows
from contracts.usage import UsageEvent, encode_usage_event
from tests.billing.databases import rows
from tests.billing.usage_events import BOOK, MODEL, PRICE, batch_of, usage

NOVEMBER = (date(2026, 11, 1), date(2026, 11, 30))
FREE_OF = {Grouping.MODEL: {MODEL}, Grouping.KEY: {"key-1"}}
OWED = 232_200_007  # pico-dollars, of one event
NEW = PriceBook(
    [PRICE, Price("new.1", "new", PRICE.effective_from, None, PRICE.usd_per_million_tokens)]
)


def post(ledger: Ledger, events: Sequence[UsageEvent], first: int | None = None) -> None:
    ledger.post(rate_batch(batch_of(list(events), first=first), BOOK))


def test_sums_by_day_are_those_of_events_and_entries(either: Ledger, either_url: str) -> None:
    """Repeats, late prices and all."""
    days = [datetime(2026, 11, day, 23, 59, tzinfo=UTC) for day in (1, 2, 30)]
    events = [
        usage(n, occurred_at=days[n % 3], key_id=f"key-{n % 2}", model=MODEL if n % 4 else "new")
        for n in range(24)
    ]
    post(either, events)
    post(either, events[:12], first=24)
    for by in Grouping:
        waiting = usage_rows(either_url, UsageQuery(by, *NOVEMBER, "acme"))
        assert sum(row.num_unpriced_requests for row in waiting) == 6
        free = {row.group for row in waiting if not row.num_unpriced_requests}
        assert free == FREE_OF.get(by, set())
    assert unpriced_models(either_url) == ("new",)
    either.record_prices(NEW)
    either.post_unpriced(NEW)
    assert unpriced_models(either_url) == ()
    for by, groups in (
        (Grouping.DAY, ["2026-11-01", "2026-11-02", "2026-11-30"]),
        (Grouping.KEY, ["key-0", "key-1"]),
        (Grouping.MODEL, sorted([MODEL, "new"])),
        (Grouping.TENANT, ["acme"]),
    ):
        found = usage_rows(either_url, UsageQuery(by, *NOVEMBER))
        assert sorted(row.group for row in found) == groups
        assert sum(row.num_requests for row in found) == 24
        assert sum(row.num_unpriced_requests for row in found) == 0
        assert sum(row.total_tokens for row in found) == 24 * 107
        assert sum(row.usd for row in found) == Decimal(24 * OWED).scaleb(-12)
    only = usage_rows(either_url, UsageQuery(Grouping.DAY, days[1].date(), days[1].date(), "acme"))
    assert [(row.group, row.num_requests) for row in only] == [("2026-11-02", 8)]
    assert usage_rows(either_url, UsageQuery(Grouping.DAY, *NOVEMBER, "globex")) == []


def test_usage_is_told_as_json_and_as_csv(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, [usage(1), usage(2, key_id="a,key"), usage(3, model="new")])
    query = UsageQuery(Grouping.KEY, *NOVEMBER, "acme")
    found = usage_rows(ledger_url, query)
    document = msgspec.json.decode(usage_json(query, found))
    read = list(csv.DictReader(io.StringIO(usage_csv(query, found))))
    assert [row["key"] for row in document["rows"]] == ["a,key", "key-1"]
    assert [row["key"] for row in read] == ["a,key", "key-1"]
    assert [row["num_unpriced_requests"] for row in document["rows"]] == [0, 1]
    assert [row["num_unpriced_requests"] for row in read] == ["0", "1"]
    assert document["rows"][0]["usd"] == read[0]["usd"] == "0.000232200007"


def test_dead_letters_that_are_understood_now_are_posted_once(
    either: Ledger, either_url: str
) -> None:
    """Letters of a time when nobody knew the fields: the same payloads, understood today."""
    good = [encode_usage_event(usage(n)) for n in (1, 2)]
    records = [
        Record(0, b"{}"),
        Record(1, good[0], fault=None),
        Record(2, b"raw", fault="checksum"),
    ]
    batch = rate_batch(Batch("spool/x", None, 3, records), BOOK)
    either.post(batch)
    insert_letter(either, 3, good[0])
    insert_letter(either, 4, good[1])
    result = replay(either, either_url, BOOK)
    assert (result.num_posted, result.num_repeated, result.num_left) == (1, 1, 1)
    again = replay(either, either_url, BOOK)
    assert (again.num_posted, again.num_repeated, again.num_left) == (0, 0, 1)
    assert totals(either_url, "acme").num_requests == 2
    assert len(rows(either_url, "dead_letters")) == 4


def test_more_dead_letters_than_fit_a_transaction_are_replayed_page_by_page(
    ledger: Ledger, ledger_url: str
) -> None:
    """Those that stay do not come again in the same replay."""
    payloads = [encode_usage_event(usage(n)) if n % 2 else b"{}" for n in range(1_002)]
    letters = [
        DeadLetter(n, DeadReason.UNDECODABLE, "unknown field", payload)
        for n, payload in enumerate(payloads)
    ]
    ledger.post(RatedBatch("spool/x", None, 1_002, [], letters))
    result = replay(ledger, ledger_url, BOOK)
    assert (result.num_posted, result.num_repeated, result.num_left) == (501, 0, 501)
    assert ledger.next_offset("replay") == 1_002


def insert_letter(ledger: Ledger, offset: int, payload: bytes) -> None:
    """As an earlier version would have left it."""
    letter = DeadLetter(offset, DeadReason.UNDECODABLE, "unknown field", payload)
    ledger.post(RatedBatch("spool/x", offset, offset + 1, [], [letter]))


@pytest.mark.parametrize("factor", [2, 0])
def test_a_dry_run_says_what_a_month_would_cost_and_changes_nothing(
    either: Ledger, either_url: str, factor: int
) -> None:
    october = datetime(2026, 10, 31, 23, tzinfo=UTC)
    post(either, [usage(1), usage(2), usage(3, model="new"), usage(4, occurred_at=october)])
    before = totals(either_url, "acme")
    rates = {c: usd * factor for c, usd in PRICE.usd_per_million_tokens.items()}
    other = PriceBook([Price("other", MODEL, PRICE.effective_from, None, rates)])
    found = dry_run(either_url, other, month_period("2026-11"))["acme"]
    assert found.charged_pico_usd == 2 * OWED
    assert found.would_be_pico_usd == 2 * OWED * factor
    assert (found.num_requests, found.num_unpriced) == (3, 1)
    assert totals(either_url, "acme") == before
    assert len(rows(either_url, "prices")) == 1
