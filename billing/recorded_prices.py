"""What each price id means, as the ledger has been told when its book was adopted."""

from collections.abc import Mapping

from sqlalchemy import Connection, select

from billing.bulk_insert import Row, insert_rows
from billing.errors import PriceBookInvalid
from billing.ledger_schema import microseconds, prices
from billing.pricing import Price, PriceBook, TokenClass


def record_prices(connection: Connection, price_book: PriceBook) -> None:
    """Raises PriceBookInvalid if a price has changed."""
    known = _recorded(connection)
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
    insert_rows(connection, prices, new)


def check_recorded(connection: Connection, price_book: PriceBook) -> None:
    """Raises PriceBookInvalid for a book that billing has not adopted here: another fleet's."""
    known = _recorded(connection)
    for price in price_book.prices:
        if known.get(price.price_id) != _price_row(price):
            raise PriceBookInvalid(
                f"price book: {price.price_id!r} is not in this ledger, or with other terms: "
                "this is not the book that its fleet bills by"
            )


def recorded_rates(connection: Connection) -> Mapping[str, Mapping[str, int]]:
    """Pico-dollars per token, by price id and token class."""
    return {
        row.price_id: {c.value: getattr(row, f"{c.value}_pico_usd") for c in TokenClass}
        for row in connection.execute(select(prices))
    }


def _recorded(connection: Connection) -> Mapping[str, Row]:
    return {row.price_id: tuple(row) for row in connection.execute(select(prices))}


def _price_row(price: Price) -> Row:
    """Without ``effective_to``: closing an open price changes no entry it has made."""
    rates = price.pico_usd_per_token
    return (
        price.price_id,
        price.model,
        microseconds(price.effective_from),
        rates[TokenClass.INPUT_UNCACHED],
        rates[TokenClass.INPUT_CACHE_READ],
        rates[TokenClass.OUTPUT_TEXT],
        price.tier,
        rates[TokenClass.INPUT_CACHE_WRITE],
        rates[TokenClass.OUTPUT_REASONING],
    )
