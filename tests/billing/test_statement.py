"""A statement is exact, adds up, and can be read while the consumer writes."""

import sqlite3
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import LedgerMissing, RequestInvalid
from billing.invoice import LineKind
from billing.invoicing import Adjustment, Invoicing
from billing.ledger import Ledger
from billing.ledger_database import open_for_reading
from billing.lookup import find_event, next_offset, totals
from billing.money import (
    MAX_TOKENS_PER_CLASS,
    cents_half_even,
    pico_usd_from_usd,
    plain,
    trimmed,
    usd_from_pico_usd,
)
from billing.periods import month_period
from billing.posting import rate_batch
from billing.pricing import Price, PriceBook, TokenClass
from billing.statement import statement
from contracts.usage import Outcome, UsageEvent
from tests.billing.usage_events import BOOK, MODEL, NOON, PRICE, batch_of, usage


def post(ledger: Ledger, *events: UsageEvent, book: PriceBook = BOOK) -> None:
    ledger.post(rate_batch(batch_of(list(events)), book))


def test_lines_are_per_model_and_class_and_sum_to_the_total(
    ledger: Ledger, ledger_url: str
) -> None:
    post(ledger, *(usage(n, output_text_tokens=n) for n in range(10)))
    november = statement(ledger_url, "acme", "2026-11")
    assert [(line.model, line.token_class, line.tokens) for line in november.lines] == [
        (MODEL, TokenClass.INPUT_CACHE_READ, 640),
        (MODEL, TokenClass.INPUT_UNCACHED, 360),
        (MODEL, TokenClass.OUTPUT_TEXT, 45),
    ]
    for line in november.lines:
        assert line.usd == line.tokens * line.usd_per_million_tokens / 10**6
    assert sum(line.usd for line in november.lines) == november.total_usd
    assert november.total_usd == Decimal("0.001947000045")
    assert november.amount_due_usd == Decimal("0.00")
    assert november.num_requests == 10


def test_corrections_and_credits_of_the_month_are_in_its_total(
    ledger: Ledger, ledger_url: str
) -> None:
    post(ledger, usage(1, occurred_at=NOON))
    used = statement(ledger_url, "acme", "2026-11").total_usd
    books = Invoicing(ledger_url, lambda: NOON)
    for name, kind, at, pico_usd in (
        ("a1", LineKind.CORRECTION, NOON, 10**12),
        ("a2", LineKind.CREDIT, NOON, -(10**11)),
        ("a3", LineKind.CREDIT, NOON - timedelta(days=40), -(10**12)),
    ):
        books.adjust(Adjustment("acme", name, kind, at, pico_usd, f"reason {name}"))
    november = statement(ledger_url, "acme", "2026-11")
    assert [(each.kind, each.usd) for each in november.adjustments] == [
        ("correction", 1),
        ("credit", Decimal("-0.1")),
    ]
    assert november.total_usd == used + Decimal("0.9")
    assert b'"reason":"reason a2","usd":"-0.100000000000"' in november.to_json()
    books.adjust(Adjustment("acme", "a4", LineKind.CREDIT, NOON, -(10**13), "too much"))
    books.close()
    overpaid = statement(ledger_url, "acme", "2026-11")
    assert (overpaid.total_usd < 0, overpaid.amount_due_usd) == (True, 0)


def test_a_month_is_a_half_open_utc_period(ledger: Ledger, ledger_url: str) -> None:
    east = timezone(timedelta(hours=14))
    post(
        ledger,
        usage(1, occurred_at=datetime(2026, 10, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        usage(2, occurred_at=datetime(2026, 11, 1, tzinfo=UTC)),
        usage(3, occurred_at=datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC)),
        usage(4, occurred_at=datetime(2026, 12, 1, tzinfo=UTC)),
        usage(5, occurred_at=datetime(2026, 12, 1, 13, 59, tzinfo=east)),
    )
    months = ("2026-09", "2026-10", "2026-11", "2026-12", "2027-01")
    assert [statement(ledger_url, "acme", m).num_requests for m in months] == [0, 1, 3, 1, 0]


def test_a_price_change_within_the_month_is_two_lines(ledger: Ledger, ledger_url: str) -> None:
    change = datetime(2026, 11, 15, tzinfo=UTC)
    dearer = {c: usd * 2 for c, usd in PRICE.usd_per_million_tokens.items()}
    book = PriceBook(
        [
            Price("smol.1", MODEL, PRICE.effective_from, change, PRICE.usd_per_million_tokens),
            Price("smol.2", MODEL, change, None, dearer),
        ]
    )
    ledger.record_prices(book)
    tokens = {"input_uncached_tokens": 0, "input_cache_read_tokens": 0, "output_text_tokens": 100}
    before = usage(1, occurred_at=change - timedelta(microseconds=1), **tokens)
    post(ledger, before, usage(2, occurred_at=change, **tokens), book=book)
    lines = statement(ledger_url, "acme", "2026-11").lines
    assert [(line.price_id, line.tokens) for line in lines] == [("smol.1", 100), ("smol.2", 100)]
    assert lines[1].usd == 2 * lines[0].usd


def test_unpriced_requests_are_shown_and_not_charged(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, usage(1, model="new"), usage(2, model="new", tenant_id="globex"))
    november = statement(ledger_url, "acme", "2026-11")
    assert (november.num_requests, november.num_unpriced_requests) == (1, 1)
    assert (november.lines, november.total_usd) == ((), 0)


def test_requests_without_usage_are_counted_apart(ledger: Ledger, ledger_url: str) -> None:
    nothing = dict.fromkeys(
        ("input_uncached_tokens", "input_cache_read_tokens", "output_text_tokens"), 0
    )
    post(
        ledger,
        usage(1),
        usage(2, outcome=Outcome.CLIENT_DISCONNECTED, output_text_tokens=1),
        usage(3, outcome=Outcome.REFUSED, **nothing),
        usage(4, outcome=Outcome.UPSTREAM_FAILED, **nothing),
        usage(5, outcome=Outcome.REFUSED, model="new", **nothing),
    )
    november = statement(ledger_url, "acme", "2026-11")
    assert (november.num_requests, november.num_requests_without_usage) == (2, 3)
    assert november.num_unpriced_requests == 0
    assert msgspec.json.decode(november.to_json())["num_requests_without_usage"] == 3


def test_one_tenant_does_not_see_another(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, usage(1), usage(1, event_id="theirs", tenant_id="globex", output_text_tokens=9))
    assert statement(ledger_url, "nobody", "2026-11").num_requests == 0
    assert totals(ledger_url, "acme").tokens[TokenClass.OUTPUT_TEXT] == 7
    theirs = find_event(ledger_url, request_id="request-1", tenant_id="globex")
    assert theirs is not None
    assert theirs.event_id == "theirs"
    assert find_event(ledger_url, request_id="request-1", tenant_id="nobody") is None


def test_a_request_is_found_with_its_tokens_and_money(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, usage(1))
    found = find_event(ledger_url, request_id="request-1")
    assert found is not None
    assert found.tokens == {
        TokenClass.INPUT_UNCACHED: 36,
        TokenClass.INPUT_CACHE_READ: 64,
        TokenClass.INPUT_CACHE_WRITE: 0,
        TokenClass.OUTPUT_TEXT: 7,
        TokenClass.OUTPUT_REASONING: 0,
    }
    assert found.usd == Decimal("0.000232200007")
    assert found.occurred_at == usage(1).occurred_at


def test_sums_beyond_64_bits_are_exact(ledger: Ledger, ledger_url: str) -> None:
    """Two entries of 5 million USD each do not fit the 9.2 million of one signed 64-bit sum."""
    dearest = dict.fromkeys(TokenClass, Decimal(10_000))
    book = PriceBook([PRICE, Price("dear", "dear", PRICE.effective_from, None, dearest)])
    ledger.record_prices(book)
    most = {"model": "dear", "output_text_tokens": MAX_TOKENS_PER_CLASS}
    post(ledger, *(usage(n, input_uncached_tokens=1, **most) for n in range(5)), book=book)
    line = statement(ledger_url, "acme", "2026-11").lines[-1]
    assert line.usd == 25_000_000
    assert totals(ledger_url, "acme").pico_usd > 2**63


def test_json_states_money_as_plain_strings(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, usage(1, input_uncached_tokens=0, input_cache_read_tokens=1, output_text_tokens=0))
    document = msgspec.json.decode(statement(ledger_url, "acme", "2026-11").to_json())
    assert document["currency"] == "USD"
    assert document["total_usd"] == document["lines"][0]["usd"] == "0.000000300000"
    assert document["lines"][0]["usd_per_million_tokens"] == "0.300000"
    assert document["amount_due_usd"] == "0.00"
    assert document["period_from"] == "2026-11-01T00:00:00Z"
    assert document["period_to"] == "2026-12-01T00:00:00Z"


NO_MONTHS = (
    "", "2026", "2026-13", "2026-00", "2026-1", "26-01", "2026-11-01", " 2026-11", "2026-11\n",
    "٢٠٢٦-11", "0000-01", "9999-12",
)  # fmt: skip


@pytest.mark.parametrize("month", NO_MONTHS)
def test_what_is_no_month_is_refused(ledger: Ledger, ledger_url: str, month: str) -> None:
    with pytest.raises(RequestInvalid, match="expected a month"):
        statement(ledger_url, "acme", month)


@given(st.dates(max_value=date(9999, 11, 30)))
def test_months_follow_each_other_without_gap_or_overlap(day: date) -> None:
    period = month_period(f"{day.year:04}-{day.month:02}")
    begins, ends = period.begins_at, period.ends_at
    assert begins.day == ends.day == 1
    assert (ends - begins).days in {28, 29, 30, 31}
    assert month_period(f"{ends.year:04}-{ends.month:02}").begins_at == ends


def test_how_far_a_source_is_posted_can_be_read(ledger: Ledger, ledger_url: str) -> None:
    post(ledger, usage(1), usage(2))
    assert next_offset(ledger_url, "spool/0a-000000.spool") == 2
    assert next_offset(ledger_url, "spool/0b-000000.spool") is None


def test_a_ledger_still_being_made_is_as_good_as_missing(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with pytest.raises(LedgerMissing):
        totals(f"sqlite:///{tmp_path / 'ledger.db'}", "acme")


def test_a_ledger_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    with pytest.raises(LedgerMissing, match=r"none\.db"):
        statement(url, "acme", "2026-11")
    assert list(tmp_path.iterdir()) == []


def test_reading_does_not_wait_for_an_open_transaction_of_the_writer(
    ledger: Ledger, ledger_url: str
) -> None:
    post(ledger, usage(1))
    writer = sqlite3.connect(ledger_url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO unpriced_events VALUES ('acme', 'event-1', 'x')")
    assert totals(ledger_url, "acme").num_unpriced_requests == 0
    writer.execute("ROLLBACK")
    writer.close()


def test_a_reader_cannot_write_and_may_be_kept_for_many_reads(
    ledger: Ledger, ledger_url: str
) -> None:
    post(ledger, usage(1))
    engine = open_for_reading(ledger_url)
    assert totals(engine, "acme") == totals(engine, "acme") == totals(ledger_url, "acme")
    with engine.begin() as connection, pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("INSERT INTO unpriced_events VALUES ('a', 'b', 'c')")
    engine.dispose()


@given(st.integers(min_value=0, max_value=10**30))
def test_money_survives_the_way_to_text_and_back(pico_usd: int) -> None:
    text = plain(usd_from_pico_usd(pico_usd))
    assert "E" not in text
    assert pico_usd_from_usd(Decimal(text)) == pico_usd


def test_an_amount_finer_than_the_ledger_holds_is_refused_not_rounded() -> None:
    with pytest.raises(ValueError, match="multiple of 1e-12"):
        pico_usd_from_usd(Decimal("0.0000000000005"))


@pytest.mark.parametrize(
    ("usd", "cents"),
    [
        ("0.005", "0.00"),
        ("0.015", "0.02"),
        ("0.0050001", "0.01"),
        ("9" * 30 + ".675", "9" * 30 + ".68"),
    ],
)
def test_the_one_rounding_is_half_even(usd: str, cents: str) -> None:
    assert plain(cents_half_even(Decimal(usd))) == cents


@pytest.mark.parametrize(
    ("usd", "text"),
    [("0.000002720000", "0.00000272"), ("10.000", "10"), ("0.000", "0"), ("100", "100")],
)
def test_an_amount_by_itself_has_no_zeros_that_say_nothing(usd: str, text: str) -> None:
    assert trimmed(Decimal(usd)) == text
