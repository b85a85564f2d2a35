"""Turn one usage event into money.  Exact: whole tokens times whole pico-dollars, no rounding."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from billing.money import usd_from_pico_usd
from billing.pricing import TOKEN_CLASSES, Price, PriceBook, TokenClass
from contracts.quota import priced_as
from contracts.usage import OutputCharge, UsageEvent

Counts = tuple[int, int, int, int, int]  # by TOKEN_CLASSES


class Charge(msgspec.Struct, frozen=True, gc=False):  # made three times an event
    """What one class of one event's tokens costs."""

    token_class: TokenClass
    tokens: int  # > 0
    pico_usd: int
    price_id: str

    @property
    def usd(self) -> Decimal:
        return usd_from_pico_usd(self.pico_usd)


def tokens_by_class(event: UsageEvent) -> Mapping[TokenClass, int]:
    """All that were processed."""
    return dict(zip(TOKEN_CLASSES, token_counts(event), strict=True))


def charged_tokens(event: UsageEvent) -> Mapping[TokenClass, int]:
    """Those that the tenant's policy has paid for."""
    return dict(zip(TOKEN_CLASSES, charged_counts(event), strict=True))


def token_counts(event: UsageEvent) -> Counts:
    """``tokens_by_class`` without the names."""
    return (
        event.input_uncached_tokens,
        event.input_cache_read_tokens,
        event.input_cache_write_tokens,
        event.output_text_tokens,
        event.output_reasoning_tokens,
    )


def charged_counts(event: UsageEvent) -> Counts:
    """All, or of the output what was delivered.

    An answer reasons first, so what was delivered of it is reasoning before it is text.
    """
    if event.delivered_tokens is None or event.output_charge is OutputCharge.GENERATED:
        return token_counts(event)
    reasoning = min(event.delivered_tokens, event.output_reasoning_tokens)
    text = min(event.delivered_tokens - reasoning, event.output_text_tokens)
    return (
        event.input_uncached_tokens,
        event.input_cache_read_tokens,
        event.input_cache_write_tokens,
        text,
        reasoning,
    )


def price_for(event: UsageEvent, price_book: PriceBook) -> Price | None:
    """None: unpriced."""
    for name in priced_as(event.model, event.adapter_of):
        price = price_book.at(name, event.occurred_at, tier=event.tier)
        if price is not None:
            return price
    return None


def prices_known(event: UsageEvent, price_book: PriceBook) -> Sequence[Price]:
    """``price_for``'s first; others were it before its adapter had a price of its own."""
    names = priced_as(event.model, event.adapter_of)
    found = (price_book.at(name, event.occurred_at, tier=event.tier) for name in names)
    return [price for price in found if price is not None]


def rate(event: UsageEvent, price: Price) -> tuple[Charge, ...]:
    """One charge per class that has tokens to be paid for."""
    price_id = price.price_id
    return tuple(
        [
            Charge(token_class, tokens, tokens * rate, price_id)
            for token_class, tokens, rate in zip(
                TOKEN_CLASSES, charged_counts(event), price.rates, strict=True
            )
            if tokens > 0
        ]
    )
