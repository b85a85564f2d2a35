"""Rating is exact, additive and never negative."""

from decimal import Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.money import MAX_TOKENS_PER_CLASS, MAX_USD_PER_MILLION_TOKENS, pico_usd_from_usd
from billing.pricing import Price, TokenClass
from billing.rating import rate, tokens_by_class
from contracts.usage import UsageEvent
from tests.billing.usage_events import PRICE, usage

MILLION = 10**6
tokens = st.integers(min_value=0, max_value=MAX_TOKENS_PER_CLASS // 2)
counts = st.tuples(tokens, tokens, tokens)
rates = st.decimals(min_value=0, max_value=MAX_USD_PER_MILLION_TOKENS, places=6)
price_lists = st.builds(
    lambda *three: price(dict(zip(TokenClass, three, strict=True))), rates, rates, rates
)


def price(usd_per_million_tokens: dict[TokenClass, Decimal]) -> Price:
    return Price("any", PRICE.model, PRICE.effective_from, None, usd_per_million_tokens)


def event_of(three: tuple[int, ...]) -> UsageEvent:
    return usage(
        input_uncached_tokens=three[0],
        input_cache_read_tokens=three[1],
        output_text_tokens=three[2],
    )


def owed(event: UsageEvent, prices: Price) -> Decimal:
    return sum((charge.usd for charge in rate(event, prices)), Decimal(0))


def test_one_million_of_each_class_costs_its_price() -> None:
    charges = rate(event_of((MILLION, MILLION, MILLION)), PRICE)
    assert {c.token_class: c.usd for c in charges} == PRICE.usd_per_million_tokens


def test_a_cached_prompt_token_is_priced_once() -> None:
    """litellm#9812: 100 prompt tokens, 64 of them cached, are 36 + 64, not 100 + 64."""
    charges = {c.token_class: c.tokens for c in rate(event_of((36, 64, 0)), PRICE)}
    assert charges == {TokenClass.INPUT_UNCACHED: 36, TokenClass.INPUT_CACHE_READ: 64}


def test_one_token_of_the_smallest_price_is_not_lost() -> None:
    smallest = price(dict.fromkeys(TokenClass, Decimal("0.000001")))
    assert owed(event_of((1, 0, 0)), smallest) == Decimal("1E-12")


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
    assert all(0 <= pico_usd_from_usd(c.usd) < 2**63 for c in rate(event_of(three), prices))


def test_an_event_without_tokens_has_no_charges() -> None:
    assert rate(event_of((0, 0, 0)), PRICE) == ()


def test_rating_reads_nothing_but_the_token_counts() -> None:
    event = event_of((1, 2, 3))
    other = msgspec.structs.replace(event, tier="gold", reserved_tokens=10**9, replica=None)
    assert rate(event, PRICE) == rate(other, PRICE)
