"""Rating is exact, additive and never negative."""

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.money import MAX_TOKENS_PER_CLASS, MAX_USD_PER_MILLION_TOKENS
from billing.pricing import Price, TokenClass
from billing.rating import charged_tokens, rate, tokens_by_class
from contracts.usage import OutputCharge, UsageEvent
from tests.billing.usage_events import PRICE, usage

MILLION = 10**6
tokens = st.integers(min_value=0, max_value=MAX_TOKENS_PER_CLASS // 2)
counts = st.tuples(*[tokens] * len(TokenClass))
rates = st.decimals(min_value=0, max_value=MAX_USD_PER_MILLION_TOKENS, places=6)
price_lists = st.builds(
    lambda *five: price(dict(zip(TokenClass, five, strict=True))), *[rates] * len(TokenClass)
)


def price(usd_per_million_tokens: dict[TokenClass, Decimal]) -> Price:
    return Price("any", PRICE.model, PRICE.effective_from, None, usd_per_million_tokens)


def event_of(counts: tuple[int, ...], **changes: object) -> UsageEvent:
    """Of the first classes, in their order."""
    every = (*counts, *[0] * (len(TokenClass) - len(counts)))
    tokens = {f"{c.value}_tokens": n for c, n in zip(TokenClass, every, strict=True)}
    return usage(**{**tokens, **changes})


def owed(event: UsageEvent, prices: Price) -> Decimal:
    return sum((charge.usd for charge in rate(event, prices)), Decimal(0))


def test_one_million_of_each_class_costs_its_price() -> None:
    charges = rate(event_of((MILLION,) * 5), PRICE)
    assert {c.token_class: c.usd for c in charges} == {
        **PRICE.usd_per_million_tokens,
        TokenClass.INPUT_CACHE_WRITE: Decimal("3"),  # as uncached input
        TokenClass.OUTPUT_REASONING: Decimal("15.000001"),  # as text
    }


def test_a_cached_prompt_token_is_priced_once() -> None:
    """litellm#9812: 100 prompt tokens, 64 of them cached, are 36 + 64, not 100 + 64."""
    charges = {c.token_class: c.tokens for c in rate(event_of((36, 64)), PRICE)}
    assert charges == {TokenClass.INPUT_UNCACHED: 36, TokenClass.INPUT_CACHE_READ: 64}


def test_cache_writes_are_no_uncached_input() -> None:
    """litellm#9812: 3 uncached, 12,304 written, 550 out were charged twice for the writes."""
    charges = rate(event_of((3, 0, 12_304, 550)), PRICE)
    assert {c.token_class: c.tokens for c in charges} == {
        TokenClass.INPUT_UNCACHED: 3,
        TokenClass.INPUT_CACHE_WRITE: 12_304,
        TokenClass.OUTPUT_TEXT: 550,
    }


def test_reasoning_leaves_the_rest_of_the_output_to_be_charged() -> None:
    """litellm#18599: of 482 tokens 448 were reasoning, and the other 34 went unbilled."""
    charges = rate(event_of((0, 0, 0, 34, 448)), PRICE)
    assert sum(c.tokens for c in charges) == 482


@pytest.mark.parametrize(
    ("delivered", "reasoning", "text"),
    [(0, 0, 0), (5, 5, 0), (10, 10, 0), (13, 10, 3), (99, 10, 20), (None, 10, 20)],
)
def test_what_was_delivered_is_charged_where_the_policy_says_so(
    delivered: int | None, reasoning: int, text: int
) -> None:
    event = event_of(
        (1, 0, 0, 20, 10), output_charge=OutputCharge.DELIVERED, delivered_tokens=delivered
    )
    charged = charged_tokens(event)
    assert charged[TokenClass.OUTPUT_REASONING] == reasoning
    assert charged[TokenClass.OUTPUT_TEXT] == text
    assert charged[TokenClass.INPUT_UNCACHED] == 1
    by_generated = msgspec.structs.replace(event, output_charge=OutputCharge.GENERATED)
    assert charged_tokens(by_generated) == tokens_by_class(event)


def test_one_token_of_the_smallest_price_is_not_lost() -> None:
    smallest = price(dict.fromkeys(TokenClass, Decimal("0.000001")))
    assert owed(event_of((1,)), smallest) == Decimal("1E-12")


@given(counts, counts, price_lists)
def test_splitting_an_event_never_changes_the_bill(
    a: tuple[int, ...], b: tuple[int, ...], prices: Price
) -> None:
    whole = event_of(tuple(x + y for x, y in zip(a, b, strict=True)))
    assert owed(whole, prices) == owed(event_of(a), prices) + owed(event_of(b), prices)


@given(counts, price_lists)
def test_charges_are_disjoint_and_cover_every_token(three: tuple[int, ...], prices: Price) -> None:
    event = event_of(three)
    charges = rate(event, prices)
    assert len({c.token_class for c in charges}) == len(charges)
    assert sum(c.tokens for c in charges) == event.total_tokens
    assert all(tokens_by_class(event)[c.token_class] == c.tokens > 0 for c in charges)


@given(counts, price_lists)
def test_every_charge_is_whole_pico_dollars_that_fit_64_bits(
    three: tuple[int, ...], prices: Price
) -> None:
    assert all(0 <= charge.pico_usd < 2**63 for charge in rate(event_of(three), prices))


def test_an_event_without_tokens_has_no_charges() -> None:
    assert rate(event_of(()), PRICE) == ()


def test_rating_reads_nothing_but_the_token_counts() -> None:
    event = event_of((1, 2, 3))
    other = msgspec.structs.replace(event, tier="gold", reserved_tokens=10**9, replica=None)
    assert rate(event, PRICE) == rate(other, PRICE)
