"""A price book is sound or refused, and answers for an instant."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from importlib import resources

import pytest

from billing.errors import PriceBookInvalid
from billing.price_book_file import parse_price_book, parse_yaml_price_book, yaml_price_book
from billing.pricing import PriceBook, TokenClass
from tests.billing.usage_events import MODEL

RATES = '{ input_uncached = "2", input_cache_read = "0.5", output_text = "6" }'


def row(
    price_id: str,
    begins: str,
    ends: str | None = None,
    *,
    model: str = "m",
    rates: str = RATES,
    more: str = "",
) -> str:
    end = "" if ends is None else f"effective_to = {ends}\n"
    return (
        f'[[price]]\nid = "{price_id}"\nmodel = "{model}"\neffective_from = {begins}\n{end}{more}'
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
GOLD = 'tier = "gold"\n'


def test_a_tier_has_its_own_price_and_else_that_of_everyone() -> None:
    ends = "2026-07-01T00:00:00Z"
    book = parse_price_book(row("all", JANUARY) + row("gold", JANUARY, ends, more=GOLD))
    spring, autumn = datetime(2026, 4, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
    found = [book.at("m", spring, tier=tier) for tier in (None, "free", "gold")]
    assert [price and price.price_id for price in found] == ["all", "all", "gold"]
    after = book.at("m", autumn, tier="gold")
    assert after is not None
    assert after.price_id == "all"
    only_gold = parse_price_book(row("gold", JANUARY, more=GOLD))
    assert only_gold.at("m", spring, tier="free") is None


def test_classes_that_a_price_does_not_name_cost_what_their_kind_costs() -> None:
    price = parse_price_book(row("a", JANUARY)).prices[0]
    assert price.pico_usd_per_token == {
        TokenClass.INPUT_UNCACHED: 2_000_000,
        TokenClass.INPUT_CACHE_READ: 500_000,
        TokenClass.INPUT_CACHE_WRITE: 2_000_000,
        TokenClass.OUTPUT_TEXT: 6_000_000,
        TokenClass.OUTPUT_REASONING: 6_000_000,
    }
    rates = RATES.replace(" }", ', input_cache_write = "2.5", output_reasoning = "0" }')
    named = parse_price_book(row("a", JANUARY, rates=rates)).prices[0].pico_usd_per_token
    assert named[TokenClass.INPUT_CACHE_WRITE] == 2_500_000
    assert named[TokenClass.OUTPUT_REASONING] == 0


def test_a_book_written_as_yaml_is_read_as_the_same_book() -> None:
    book = parse_price_book(
        row("a", "2026-01-01T00:00:00+02:00", "2026-03-01T00:00:00Z")
        + row(
            "b",
            "2026-03-01T00:00:00Z",
            rates=RATES.replace('"2"', '"0.000001"').replace('"0.5"', '"0"'),
            more="is_large_step = true\n",
        )
        + row("c", JANUARY, more=GOLD)
    )
    assert parse_yaml_price_book(yaml_price_book(book)).prices == book.prices


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("price: [", "price book"),
        ("- a", "only"),
        ("price: 3", "only"),
        ("prices: []", "only"),
        ("!!python/object/apply:os.system [ls]", "price book"),
    ],
)
def test_unsound_yaml_is_refused_with_the_reason(yaml: str, message: str) -> None:
    with pytest.raises(PriceBookInvalid, match=message):
        parse_yaml_price_book(yaml)


DEARER = '{ input_uncached = "2000", input_cache_read = "500", output_text = "6000" }'


def test_a_thousandfold_step_is_a_slip_of_units_unless_it_is_meant() -> None:
    """A price per thousand tokens in a place for one per million."""
    before = row("a", JANUARY, "2026-02-01T00:00:00Z")
    with pytest.raises(PriceBookInvalid, match="100 times away"):
        parse_price_book(before + row("b", "2026-02-01T00:00:00Z", rates=DEARER))
    meant = row("b", "2026-02-01T00:00:00Z", rates=DEARER, more="is_large_step = true\n")
    assert len(parse_price_book(before + meant).prices) == 2


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
        (row("a", JANUARY, more=GOLD) * 2, "'a' stands twice"),
        (row("a", JANUARY, more=GOLD) + row("b", JANUARY, more=GOLD), "overlap"),
        (row("a", JANUARY, more='tier = ""\n'), "non-empty string"),
        (row("a", JANUARY, more="is_large_step = 1\n"), "true or false"),
        (row("a", JANUARY, rates=RATES.replace('"0.5"', '"2.1"')), "more for a cached token"),
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
