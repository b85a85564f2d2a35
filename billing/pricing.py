"""What a token costs, for whom it matters when: effective-dated prices without gaps being guessed.

A ``PriceBook`` is sound or refused: exact decimals, ids that stand once, half-open periods
``[effective_from, effective_to)`` that do not overlap for one model.  A model or an instant it does
not hold has no price; that is never the price zero.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import pairwise

from billing.errors import PriceBookInvalid
from billing.money import MAX_USD_PER_MILLION_TOKENS

_MAX_DECIMALS = 6
_KEYS = {"id", "model", "effective_from", "effective_to", "usd_per_million_tokens"}


class TokenClass(StrEnum):
    """Disjoint: a token belongs to one class and is priced once."""

    INPUT_UNCACHED = "input_uncached"
    INPUT_CACHE_READ = "input_cache_read"
    OUTPUT_TEXT = "output_text"


@dataclass(frozen=True, slots=True)
class Price:
    """Never edited once used: a change of price is another ``Price`` with another id."""

    price_id: str
    model: str
    effective_from: datetime  # aware, inclusive
    effective_to: datetime | None  # aware, exclusive; None: until further notice
    usd_per_million_tokens: Mapping[TokenClass, Decimal]

    def covers(self, instant: datetime) -> bool:
        return self.effective_from <= instant and (
            self.effective_to is None or instant < self.effective_to
        )


class PriceBook:
    """Prices by model and instant.  Raises PriceBookInvalid if they contradict each other."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self.prices = tuple(prices)
        _check_ids(self.prices)
        self._by_model: dict[str, list[Price]] = {}
        for price in sorted(self.prices, key=lambda p: p.effective_from):
            self._by_model.setdefault(price.model, []).append(price)
        for model_prices in self._by_model.values():
            _check_periods(model_prices)

    @property
    def models(self) -> frozenset[str]:
        return frozenset(self._by_model)

    def at(self, model: str, instant: datetime) -> Price | None:
        """The price of ``model`` at ``instant`` (aware); None: unpriced."""
        return next((p for p in self._by_model.get(model, ()) if p.covers(instant)), None)


def parse_price_book(toml: str) -> PriceBook:
    """A table ``[[price]]`` per price.  Raises PriceBookInvalid, naming the price at fault."""
    try:
        document = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as exc:
        raise PriceBookInvalid(f"price book: {exc}") from exc
    rows = document.pop("price", [])
    if document or not isinstance(rows, list):
        raise PriceBookInvalid(
            f"price book: expected only [[price]] tables, got {sorted(document)}"
        )
    return PriceBook([_price(row, f"price book: price {index}") for index, row in enumerate(rows)])


def _price(row: object, where: str) -> Price:
    if (
        not isinstance(row, dict)
        or not row.keys() <= _KEYS
        or _KEYS - row.keys() > {"effective_to"}
    ):
        raise PriceBookInvalid(
            f"{where}: expected the keys {sorted(_KEYS)}, effective_to may be left out"
        )
    rates = row["usd_per_million_tokens"]
    if not isinstance(rates, dict) or rates.keys() != set(TokenClass):
        raise PriceBookInvalid(
            f"{where}: usd_per_million_tokens must hold exactly {', '.join(TokenClass)}"
        )
    return Price(
        price_id=_text(row["id"], f"{where}: id"),
        model=_text(row["model"], f"{where}: model"),
        effective_from=_instant(row["effective_from"], f"{where}: effective_from"),
        effective_to=(
            _instant(row["effective_to"], f"{where}: effective_to")
            if "effective_to" in row
            else None
        ),
        usd_per_million_tokens={c: _rate(rates[c], f"{where}: {c}") for c in TokenClass},
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise PriceBookInvalid(f"{where}: expected a non-empty string, got {value!r}")
    return value


def _instant(value: object, where: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise PriceBookInvalid(
            f"{where}: expected a date-time with offset such as 2026-01-01T00:00:00Z, got {value}"
        )
    return value.astimezone(UTC)


def _rate(value: object, where: str) -> Decimal:
    """Text only: a TOML float has been rounded before anyone could refuse it."""
    if not isinstance(value, str):
        raise PriceBookInvalid(f'{where}: expected a string such as "0.40", got {value!r}')
    try:
        rate = Decimal(value)
    except InvalidOperation as exc:
        raise PriceBookInvalid(f"{where}: expected a decimal number, got {value!r}") from exc
    if not rate.is_finite() or not 0 <= rate <= MAX_USD_PER_MILLION_TOKENS:
        raise PriceBookInvalid(
            f"{where}: expected 0 to {MAX_USD_PER_MILLION_TOKENS} USD, got {value!r}"
        )
    if -int(rate.as_tuple().exponent) > _MAX_DECIMALS:
        raise PriceBookInvalid(f"{where}: expected at most {_MAX_DECIMALS} decimals, got {value!r}")
    return rate


def _check_ids(prices: Sequence[Price]) -> None:
    seen: set[str] = set()
    for price in prices:
        if price.price_id in seen:
            raise PriceBookInvalid(f"price book: id {price.price_id!r} stands twice")
        seen.add(price.price_id)
        if price.effective_to is not None and price.effective_to <= price.effective_from:
            raise PriceBookInvalid(f"price book: {price.price_id!r} ends before it begins")


def _check_periods(prices: Sequence[Price]) -> None:
    """``prices`` are of one model, by ``effective_from``."""
    for earlier, later in pairwise(prices):
        if earlier.effective_to is None or earlier.effective_to > later.effective_from:
            raise PriceBookInvalid(
                f"price book: {earlier.price_id!r} and {later.price_id!r} overlap"
            )
