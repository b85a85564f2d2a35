"""Turn one usage event into money.  Exact: whole tokens times whole pico-dollars, no rounding."""

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from billing.money import usd_from_pico_usd
from billing.pricing import Price, TokenClass
from contracts.usage import OutputCharge, UsageEvent


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
    return {
        TokenClass.INPUT_UNCACHED: event.input_uncached_tokens,
        TokenClass.INPUT_CACHE_READ: event.input_cache_read_tokens,
        TokenClass.INPUT_CACHE_WRITE: event.input_cache_write_tokens,
        TokenClass.OUTPUT_TEXT: event.output_text_tokens,
        TokenClass.OUTPUT_REASONING: event.output_reasoning_tokens,
    }


def charged_tokens(event: UsageEvent) -> Mapping[TokenClass, int]:
    """Those that the tenant's policy has paid for: all, or of the output what was delivered.

    An answer reasons first, so what was delivered of it is reasoning before it is text.
    """
    if event.output_charge is OutputCharge.GENERATED or event.delivered_tokens is None:
        return tokens_by_class(event)
    reasoning = min(event.delivered_tokens, event.output_reasoning_tokens)
    text = min(event.delivered_tokens - reasoning, event.output_text_tokens)
    return {
        **tokens_by_class(event),
        TokenClass.OUTPUT_REASONING: reasoning,
        TokenClass.OUTPUT_TEXT: text,
    }


def rate(event: UsageEvent, price: Price) -> tuple[Charge, ...]:
    """One charge per class that has tokens to be paid for."""
    rates, price_id = price.pico_usd_per_token, price.price_id
    return tuple(
        [
            Charge(token_class, tokens, tokens * rates[token_class], price_id)
            for token_class, tokens in charged_tokens(event).items()
            if tokens > 0
        ]
    )
