"""Exact money: ``Decimal`` US dollars at the edges, integer pico-dollars (1e-12 USD) in the ledger.

A price per million tokens with at most six decimals is a whole number of pico-dollars per token,
so every amount is a whole number and SQL sums of it are exact.  An entry must fit a signed 64-bit
integer, that is 9.22 million USD: ``MAX_USD_PER_MILLION_TOKENS`` x ``MAX_TOKENS_PER_CLASS`` is 5
million.  Sums of entries have no such bound: see ``statement``.
"""

from collections.abc import Iterable
from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    FloatOperation,
    Inexact,
    InvalidOperation,
    Overflow,
)
from functools import reduce
from typing import Final

PICO_USD_PER_USD: Final = 10**12
MAX_USD_PER_MILLION_TOKENS: Final = Decimal(10_000)
MAX_TOKENS_PER_CLASS: Final = 500_000_000
"""Of one request."""

EXACT: Final = Context(
    prec=60, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow, FloatOperation]
)
"""Arithmetic that raises ``decimal.Inexact`` rather than round."""

_HALF_EVEN: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)
_PICO_PER_NANO: Final = 1_000
_CENT: Final = Decimal("0.01")


def pico_usd_from_usd(usd: Decimal) -> int:
    """Raises ValueError if ``usd`` is no whole number of pico-dollars."""
    pico_usd = EXACT.multiply(usd, Decimal(PICO_USD_PER_USD))
    if pico_usd != pico_usd.to_integral_value():
        raise ValueError(f"expected a multiple of 1e-12 USD, got {usd}")
    return int(pico_usd)


def pico_usd_per_token(usd_per_million_tokens: Decimal) -> int:
    """Raises ValueError for a price of more than six decimals."""
    return pico_usd_from_usd(EXACT.scaleb(usd_per_million_tokens, -6))


def usd_from_pico_usd(pico_usd: int) -> Decimal:
    return EXACT.scaleb(Decimal(pico_usd), -12)


def usd_per_million_from_pico_usd(pico_usd_per_token: int) -> Decimal:
    """A million tokens at a trillionth of a dollar: the millionth that a price is stated in."""
    return EXACT.scaleb(Decimal(pico_usd_per_token), -6)


def nano_usd_up(pico_usd: int) -> int:
    """Rounded up, as budgets count: none is passed by what rounding leaves out."""
    return -(-pico_usd // _PICO_PER_NANO)


def sum_usd(amounts: Iterable[Decimal]) -> Decimal:
    return reduce(EXACT.add, amounts, usd_from_pico_usd(0))


def cents_half_even(usd: Decimal) -> Decimal:
    """The one rounding in billing: what a statement asks to be paid."""
    return usd.quantize(_CENT, context=_HALF_EVEN)


def plain(usd: Decimal) -> str:
    """Never in scientific notation."""
    return format(usd, "f")


def trimmed(usd: Decimal) -> str:
    """``plain`` without the zeros that say nothing: for one amount by itself."""
    text = plain(usd)
    return text.rstrip("0").rstrip(".") if "." in text else text
