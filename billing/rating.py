"""Turn one usage event into money.  Exact: Decimal in, Decimal out, no floats, no rounding."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from billing.money import EXACT, TOKENS_PER_PRICE_UNIT
from billing.pricing import Price, TokenClass
from contracts.usage import UsageEvent


@dataclass(frozen=True, slots=True)
class Charge:
    """What one class of one event's tokens costs."""

    token_class: TokenClass
    tokens: int  # > 0
    usd: Decimal  # exact
    price_id: str


def tokens_by_class(event: UsageEvent) -> Mapping[TokenClass, int]:
    return {
        TokenClass.INPUT_UNCACHED: event.input_uncached_tokens,
        TokenClass.INPUT_CACHE_READ: event.input_cache_read_tokens,
        TokenClass.OUTPUT_TEXT: event.output_text_tokens,
    }


def rate(event: UsageEvent, price: Price) -> tuple[Charge, ...]:
    """One charge per class that has tokens.  Raises decimal.Inexact rather than round."""
    return tuple(
        Charge(
            token_class=token_class,
            tokens=tokens,
            usd=_usd(tokens, price.usd_per_million_tokens[token_class]),
            price_id=price.price_id,
        )
        for token_class, tokens in tokens_by_class(event).items()
        if tokens > 0
    )


def _usd(tokens: int, usd_per_million_tokens: Decimal) -> Decimal:
    usd_of_million = EXACT.multiply(Decimal(tokens), usd_per_million_tokens)
    return EXACT.divide(usd_of_million, Decimal(TOKENS_PER_PRICE_UNIT))
