"""A price book is sound or refused, and answers for an instant."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from importlib import resources

import pytest

from billing.errors import PriceBookInvalid
from billing.pricing import PriceBook, TokenClass, parse_price_book
from tests.billing.usage_events import MODEL

RATES = '{ input_uncached = "2", input_cache_read = "0.5", output_text = "6" }'


def row(
    price_id: str,
    begins: str,
    ends: str | None = None,
    *,
    model: str = "m",
    rates: str = RATES,
) -> str:
    end = "" if ends is None else f"effective_to = {ends}\n"
    return (
        f'[[price]]\nid = "{price_id}"\nmodel = "{model}"\neffective_from = {begins}\n{end}'
        f"usd_per_million_tokens = {rates}\n"
    )


def price_id_at(book: PriceBook, instant: datetime, model: str = "m") -> str | None:
    price = book.at(model, instant)
    return None if price is None else price.price_id


YEARS = parse_price_book(
    row("first", "2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z")
    + row("third", "2026-09-01T00:00:00Z")
    + row("second", "2026-07-01T00:00:00Z", "2026-08-01T00:00:00Z")
)


@pytest.mark.parametrize(
    ("instant", "price_id"),
    [
        (datetime(2025, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None),
        (datetime(2026, 1, 1, tzinfo=UTC), "first"),
        (datetime(2026, 6, 30, 23, 59, 59, 999_999, tzinfo=UTC), "first"),
        (datetime(2026, 7, 1, tzinfo=UTC), "second"),
        (datetime(2026, 8, 1, tzinfo=UTC), None),
        (datetime(2026, 9, 1, tzinfo=UTC), "third"),
        (datetime(2999, 1, 1, tzinfo=UTC), "third"),
        (datetime(2026, 7, 1, 1, tzinfo=timezone(timedelta(hours=2))), "first"),
        (datetime(2026, 6, 30, 23, tzinfo=timezone(timedelta(hours=-1))), "second"),
    ],
    ids=[
        "before",
        "first instant",
        "last instant",
        "boundary belongs to the later",
        "gap",
        "after the gap",
        "without end",
        "still June in UTC",
        "already July in UTC",
    ],
)
def test_periods_are_half_open_instants(instant: datetime, price_id: str | None) -> None:
    assert price_id_at(YEARS, instant) == price_id


def test_an_unknown_model_has_no_price() -> None:
    assert YEARS.at("n", datetime(2026, 1, 1, tzinfo=UTC)) is None


def test_a_period_may_be_written_in_any_time_zone() -> None:
    book = parse_price_book(row("a", "2026-01-01T00:00:00+02:00"))
    assert price_id_at(book, datetime(2025, 12, 31, 22, tzinfo=UTC)) == "a"


def test_a_price_of_zero_is_a_price() -> None:
    book = parse_price_book(row("a", "2026-01-01T00:00:00Z", rates=RATES.replace('"6"', '"0"')))
    price = book.at("m", datetime(2026, 1, 1, tzinfo=UTC))
    assert price is not None
    assert price.usd_per_million_tokens[TokenClass.OUTPUT_TEXT] == 0


JANUARY = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (row("a", JANUARY) + row("b", "2026-02-01T00:00:00Z"), "overlap"),
        (row("a", JANUARY, "2026-02-01T00:00:01Z") + row("b", "2026-02-01T00:00:00Z"), "overlap"),
        (row("a", JANUARY) + row("a", JANUARY, model="n"), "'a' stands twice"),
        (row("a", JANUARY, JANUARY), "ends before it begins"),
        (row("a", "2026-01-01T00:00:00"), "date-time with offset"),
        (row("a", "2026-01-01"), "date-time with offset"),
        (row("a", '"January"'), "date-time with offset"),
        (row("", JANUARY), "non-empty string"),
        (row("a", JANUARY, rates=RATES.replace('"2"', "2.0")), "string such as"),
        (row("a", JANUARY, rates=RATES.replace('"2"', '"cheap"')), "decimal number"),
        (row("a", JANUARY, rates=RATES.replace('"2"', '"NaN"')), "expected 0 to"),
        (row("a", JANUARY, rates=RATES.replace('"2"', '"-1"')), "expected 0 to"),
        (row("a", JANUARY, rates=RATES.replace('"2"', '"10000.01"')), "expected 0 to"),
        (row("a", JANUARY, rates=RATES.replace('"2"', '"0.0000001"')), "at most 6 decimals"),
        (row("a", JANUARY, rates='{ input_uncached = "2" }'), "must hold exactly"),
        (row("a", JANUARY) + 'currency = "EUR"', "expected the keys"),
        ('[[price]]\nid = "a"', "expected the keys"),
        ('version = 2\n[[price]]\nid = "a"', "only"),
        ("price = 3", "only"),
        ("price = [3]", "expected the keys"),
        ("price = ", "price book"),
    ],
)
def test_an_unsound_book_is_refused_with_the_reason(toml: str, message: str) -> None:
    with pytest.raises(PriceBookInvalid, match=message):
        parse_price_book(toml)


def test_the_packaged_book_prices_the_default_model_and_nothing_unknown() -> None:
    packaged = resources.files("billing").joinpath("default_prices.toml").read_text("utf-8")
    book = parse_price_book(packaged)
    now = datetime(2026, 11, 29, tzinfo=UTC)
    price = book.at(MODEL, now)
    assert price is not None
    assert all(Decimal(0) < usd < 1 for usd in price.usd_per_million_tokens.values())
    assert book.at("gpt-4", now) is None
