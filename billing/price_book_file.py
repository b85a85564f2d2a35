"""The price book as people write it: TOML, or the same in YAML; read, checked and written.

Amounts are text in either: a number has been rounded to binary before anyone could refuse it.
"""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Final

import yaml

from billing.errors import PriceBookInvalid
from billing.money import MAX_USD_PER_MILLION_TOKENS, plain
from billing.pricing import PRICED_AS, Price, PriceBook, TokenClass

_MAX_DECIMALS: Final = 6
_YAML: Final = (".yaml", ".yml")
_KEYS: Final = {"id", "model", "effective_from", "usd_per_million_tokens"}
_OPTIONAL_KEYS: Final = {"effective_to", "tier", "is_large_step"}
_CLASSES: Final = set(TokenClass)
_OPTIONAL_CLASSES: Final = set(PRICED_AS)


def read_price_book(path: Path | None) -> PriceBook:
    """YAML by its name, else TOML; None: the packaged one.  Raises PriceBookInvalid."""
    if path is None:
        packaged = resources.files("billing").joinpath("default_prices.toml")
        return parse_price_book(packaged.read_text("utf-8"))
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise PriceBookInvalid(f"price book {path}: {exc}") from exc
    return (parse_yaml_price_book if path.suffix in _YAML else parse_price_book)(text)


def parse_price_book(text: str) -> PriceBook:
    """TOML, a table ``[[price]]`` per price.  Raises PriceBookInvalid, naming the price."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise PriceBookInvalid(f"price book: {exc}") from exc
    return _price_book(document)


def parse_yaml_price_book(text: str) -> PriceBook:
    """YAML, a list ``price``.  Raises PriceBookInvalid, naming the price at fault."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise PriceBookInvalid(f"price book: {exc}") from exc
    return _price_book(document)


def yaml_price_book(price_book: PriceBook) -> str:
    """What ``parse_yaml_price_book`` makes the same book of."""
    rows = [_row(price) for price in price_book.prices]
    text: str = yaml.safe_dump({"price": rows}, sort_keys=False, allow_unicode=True)
    return text


def _row(price: Price) -> dict[str, object]:
    row: dict[str, object] = {
        "id": price.price_id,
        "model": price.model,
        "effective_from": price.effective_from.isoformat(),
    }
    if price.tier is not None:
        row["tier"] = price.tier
    if price.effective_to is not None:
        row["effective_to"] = price.effective_to.isoformat()
    if price.is_large_step:
        row["is_large_step"] = True
    rates = price.usd_per_million_tokens
    row["usd_per_million_tokens"] = {c.value: plain(rates[c]) for c in TokenClass if c in rates}
    return row


def _price_book(document: object) -> PriceBook:
    rows = document.get("price", []) if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.keys() - {"price"} or not isinstance(rows, list):
        found = sorted(map(str, document)) if isinstance(document, dict) else document
        raise PriceBookInvalid(f"price book: expected only [[price]] tables, got {found}")
    return PriceBook([_price(row, f"price book: price {index}") for index, row in enumerate(rows)])


def _price(row: object, where: str) -> Price:
    if (
        not isinstance(row, dict)
        or not row.keys() <= _KEYS | _OPTIONAL_KEYS
        or not row.keys() >= _KEYS
    ):
        raise PriceBookInvalid(
            f"{where}: expected the keys {sorted(_KEYS)}, and maybe {sorted(_OPTIONAL_KEYS)}"
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
        usd_per_million_tokens=_rates(row["usd_per_million_tokens"], where),
        tier=_text(row["tier"], f"{where}: tier") if "tier" in row else None,
        is_large_step=_flag(row.get("is_large_step", False), f"{where}: is_large_step"),
    )


def _rates(rates: object, where: str) -> Mapping[TokenClass, Decimal]:
    if (
        not isinstance(rates, dict)
        or not rates.keys() <= _CLASSES
        or not rates.keys() >= _CLASSES - _OPTIONAL_CLASSES
    ):
        raise PriceBookInvalid(
            f"{where}: usd_per_million_tokens must hold exactly {', '.join(TokenClass)}, "
            f"of which {' and '.join(PRICED_AS)} may be left out"
        )
    return {c: _rate(rates[c], f"{where}: {c}") for c in TokenClass if c in rates}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise PriceBookInvalid(f"{where}: expected a non-empty string, got {value!r}")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise PriceBookInvalid(f"{where}: expected true or false, got {value!r}")
    return value


def _instant(value: object, where: str) -> datetime:
    """As TOML has it, or the same as text, which is what YAML keeps whole."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
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
