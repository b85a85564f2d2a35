"""What a token costs, for whom it matters when: effective-dated prices without gaps being guessed.

A ``PriceBook`` is sound or refused: exact decimals, ids that stand once, half-open periods
``[effective_from, effective_to)`` that do not overlap for one model and tier.  A model or an
instant it does not hold has no price; that is never the price zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Final

from billing.errors import PriceBookInvalid
from billing.money import pico_usd_per_token


class TokenClass(StrEnum):
    """Disjoint: a token belongs to one class and is priced once."""

    INPUT_UNCACHED = "input_uncached"
    INPUT_CACHE_READ = "input_cache_read"
    INPUT_CACHE_WRITE = "input_cache_write"
    OUTPUT_TEXT = "output_text"
    OUTPUT_REASONING = "output_reasoning"


TOKEN_CLASSES: Final = tuple(TokenClass)
"""In the order in which counts and rates are told without their names."""

PRICED_AS: Final[Mapping[TokenClass, TokenClass]] = {
    TokenClass.INPUT_CACHE_WRITE: TokenClass.INPUT_UNCACHED,
    TokenClass.OUTPUT_REASONING: TokenClass.OUTPUT_TEXT,
}
"""What a price that does not name the class charges for it."""

_LARGEST_STEP: Final = 100
"""From one price of a model to its next: more is a slip of units, unless it says it is meant."""


@dataclass(frozen=True, slots=True)
class Price:
    """Never edited once used: a change of price is another ``Price`` with another id."""

    price_id: str
    model: str
    effective_from: datetime  # aware, inclusive
    effective_to: datetime | None  # aware, exclusive; None: until further notice
    usd_per_million_tokens: Mapping[TokenClass, Decimal]  # classes of PRICED_AS may be left out
    tier: str | None = None  # None: of every tier that has no price of its own
    is_large_step: bool = False  # meant to be far from the price before it
    pico_usd_per_token: Mapping[TokenClass, int] = field(init=False, compare=False, repr=False)
    rates: Sequence[int] = field(init=False, compare=False, repr=False)  # those, by TOKEN_CLASSES

    def __post_init__(self) -> None:
        named = {c: pico_usd_per_token(usd) for c, usd in self.usd_per_million_tokens.items()}
        every = {c: named[c] if c in named else named[PRICED_AS[c]] for c in TokenClass}
        object.__setattr__(self, "pico_usd_per_token", every)
        object.__setattr__(self, "rates", tuple(every.values()))

    def covers(self, instant: datetime) -> bool:
        return self.effective_from <= instant and (
            self.effective_to is None or instant < self.effective_to
        )


class PriceBook:
    """Prices by model, tier and instant.  Raises PriceBookInvalid if they contradict each other."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self.prices = tuple(prices)
        _check_ids(self.prices)
        self._by_model: dict[tuple[str, str | None], list[Price]] = {}
        for price in sorted(self.prices, key=lambda p: p.effective_from):
            _check_cached_is_not_dearer(price)
            self._by_model.setdefault((price.model, price.tier), []).append(price)
        for of_one in self._by_model.values():
            _check_periods(of_one)
            _check_steps(of_one)

    @property
    def models(self) -> frozenset[str]:
        return frozenset(model for model, _ in self._by_model)

    def at(self, model: str, instant: datetime, *, tier: str | None = None) -> Price | None:
        """The price of ``model`` at ``instant`` (aware), the tier's own first; None: unpriced."""
        price = None if tier is None else self._at(model, tier, instant)
        return self._at(model, None, instant) if price is None else price

    def _at(self, model: str, tier: str | None, instant: datetime) -> Price | None:
        for price in self._by_model.get((model, tier), ()):
            if price.covers(instant):
                return price
        return None


def _check_ids(prices: Sequence[Price]) -> None:
    seen: set[str] = set()
    for price in prices:
        if price.price_id in seen:
            raise PriceBookInvalid(f"price book: id {price.price_id!r} stands twice")
        seen.add(price.price_id)
        if price.effective_to is not None and price.effective_to <= price.effective_from:
            raise PriceBookInvalid(f"price book: {price.price_id!r} ends before it begins")


def _check_cached_is_not_dearer(price: Price) -> None:
    rates = price.pico_usd_per_token
    if rates[TokenClass.INPUT_CACHE_READ] > rates[TokenClass.INPUT_UNCACHED]:
        raise PriceBookInvalid(
            f"price book: {price.price_id!r} charges more for a cached token than for a fresh one"
        )


def _check_periods(prices: Sequence[Price]) -> None:
    """``prices`` are of one model and tier, by ``effective_from``."""
    for earlier, later in pairwise(prices):
        if earlier.effective_to is None or earlier.effective_to > later.effective_from:
            raise PriceBookInvalid(
                f"price book: {earlier.price_id!r} and {later.price_id!r} overlap"
            )


def _check_steps(prices: Sequence[Price]) -> None:
    """A price per thousand tokens in the place of one per million is a factor of 1,000 away."""
    for earlier, later in pairwise(prices):
        if later.is_large_step:
            continue
        for token_class in TokenClass:
            before = earlier.pico_usd_per_token[token_class]
            after = later.pico_usd_per_token[token_class]
            if min(before, after) > 0 and _ratio(before, after) > _LARGEST_STEP:
                raise PriceBookInvalid(
                    f"price book: {later.price_id!r} is more than {_LARGEST_STEP} times away from "
                    f"{earlier.price_id!r} in {token_class.value}; "
                    "if that is meant, say is_large_step = true"
                )


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
