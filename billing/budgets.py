"""Which thresholds of a budget a spend has reached.  Pure.

Periods are calendar days and months in UTC, as those of the quota's budgets.  An alert is of one
threshold in one period; whoever keeps them raises each once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from billing.terms import Budget, BudgetPeriod

_EPOCH: Final = date(1970, 1, 1)
LATE_GRACE: Final = timedelta(hours=2)  # for what a period's last requests take to be posted


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


def open_periods(period: BudgetPeriod, now: datetime) -> Iterator[BudgetDays]:
    """The one that is running, after the one before it while that may still be added to."""
    current = days_of(period, now)
    before = days_of(period, now - LATE_GRACE)
    if before != current:
        yield before
    yield current


def reached(budget: Budget, spent_pico_usd: int) -> Iterator[int]:
    """The thresholds, in percent, in order."""
    for percent in sorted(budget.thresholds_percent):
        if spent_pico_usd * 100 >= budget.pico_usd * percent:
            yield percent
