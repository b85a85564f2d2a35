"""What an operator may limit besides the two rates every tenant has, and what a token costs there.

A rule counts on its own everything it matches: the requests of one key, to one model, of one key
to one model, or all of a tenant's.  A request needs room in every rule that matches it.

Money is in nano-dollars.  A price per thousand tokens is then exact to a millionth of a dollar per
million tokens, as billing's are.  The ledger is the truth; these numbers only say when to stop.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

import msgspec

from contracts.windows import TimeWindow

# A bucket counts in 1/60000 of a unit: at the bound its numbers are still exact in a double.
MAX_LIMIT = 1_000_000_000
MAX_BUDGET = 10**15  # a quadrillion tokens, or a million dollars: sums stay exact in a double
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)]
_Budget = Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)]
_Price = Annotated[int, msgspec.Meta(ge=0, le=10**10)]  # ten thousand dollars a million tokens
_TOKENS_PER_PRICE_UNIT = 1_000


class QuotaRule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="quota.rule.v1",
    omit_defaults=True,
):
    """``None`` for key or model: any.  ``None`` for a limit: none.

    Budgets are hard, and hold for calendar days and months in UTC: a request is held at the most it
    can take, also where its tenant's rates are charged what is expected.
    """

    key_id: str | None = None
    model: str | None = None  # as replicas call it
    window: TimeWindow | None = None  # None: always; while open, in place of the rule without one
    is_shadow: bool = False  # counts what it would refuse, and refuses nothing
    tokens_per_minute: Limit | None = None
    requests_per_minute: Limit | None = None
    concurrent_requests: Limit | None = None
    tokens_per_day: _Budget | None = None
    tokens_per_month: _Budget | None = None
    nano_usd_per_day: _Budget | None = None
    nano_usd_per_month: _Budget | None = None

    def matches(self, key_id: str | None, model: str | None) -> bool:
        """``None``: any, whom only what holds for all concerns.

        What holds for an adapter's name holds also where it goes by its base's and its own.
        """
        if self.key_id not in (None, key_id):
            return False
        return self.model in (None, model) or (model is not None and self.model == own_name(model))

    @property
    def selector(self) -> tuple[str | None, str | None, bool]:
        """Rules with the same count the same requests into the same counters."""
        return self.key_id, self.model, self.is_shadow

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in (self.tokens_per_day, self.tokens_per_month)) or (
            self.has_money_budget
        )

    @property
    def has_money_budget(self) -> bool:
        return self.nano_usd_per_day is not None or self.nano_usd_per_month is not None


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model.price.v1"):
    """What money budgets are counted with, in nano-dollars per thousand tokens."""

    model: str  # as replicas call it
    input_uncached: _Price
    input_cache_read: _Price
    output_text: _Price

    def nano_usd(self, *, uncached: int, cached: int, output: int) -> int:
        """Of one request; rounded up."""
        thousandfold = (
            uncached * self.input_uncached
            + cached * self.input_cache_read
            + output * self.output_text
        )
        return -(-thousandfold // _TOKENS_PER_PRICE_UNIT)


def own_name(model: str) -> str:
    """Of ``base:adapter`` the adapter's; of any other name what stands after its last colon."""
    return model.rpartition(":")[2]


def priced_as(model: str, adapter_of: str | None) -> tuple[str, ...]:
    """By whose price it is charged: the first of these that has one.

    An adapter that goes by its base's name and its own, since another bears its own, too, costs
    what it did before; without a price of its own it costs what the model does that it adapts.
    """
    if adapter_of is None:
        return (model,)
    own = model.removeprefix(f"{adapter_of}:")
    return (model, adapter_of) if own == model else (model, own, adapter_of)


def price_of(
    prices: Mapping[str, ModelPrice], model: str, adapter_of: str | None
) -> ModelPrice | None:
    """As billing has it."""
    return next((prices[name] for name in priced_as(model, adapter_of) if name in prices), None)


def usd_of_nano(nano_usd: int) -> str:
    """Exact, and without zeros that say nothing."""
    return f"{Decimal(nano_usd) / 10**9:,.9f}".rstrip("0").rstrip(".")
