"""Which thresholds of a budget a spend has reached.  Pure.

Periods are calendar days and months in UTC, as those of the quota's budgets.  An alert is of one
threshold in one period; whoever keeps them raises each once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from billing.terms import Budget, BudgetPeriod

_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class BudgetDays:
    """[first, last] since 1970, and what the period is called."""

    name: str
    first: int
    last: int


def days_of(period: BudgetPeriod, now: datetime) -> BudgetDays:
    today = now.astimezone(UTC).date()
    if period is BudgetPeriod.DAY:
        number = (today - _EPOCH).days
        return BudgetDays(today.isoformat(), number, number)
    begins = today.replace(day=1)
    ends = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    return BudgetDays(
        f"{today.year:04d}-{today.month:02d}", (begins - _EPOCH).days, (ends - _EPOCH).days - 1
    )


def reached(budget: Budget, spent_pico_usd: int) -> Iterator[int]:
    """The thresholds, in percent, in order."""
    for percent in sorted(budget.thresholds_percent):
        if spent_pico_usd * 100 >= budget.pico_usd * percent:
            yield percent
