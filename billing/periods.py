"""Calendar months of a tenant's own time zone, as half-open instants.  Pure.

Boundaries are local midnights turned into instants, never durations added: a month has 28 to 31
days, and two of the year's days have 23 and 25 hours in many zones.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from billing.errors import RequestInvalid

_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True)
class Period:
    """``begins_at`` belongs to it, ``ends_at`` to the next."""

    begins_at: datetime  # aware, UTC
    ends_at: datetime


def time_zone(name: str) -> ZoneInfo:
    """Raises RequestInvalid."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:  # none, or one that is no file name
        raise RequestInvalid(f"expected a time zone such as Europe/Paris, got {name!r}") from exc


def month_period(month: str, zone: str = "UTC") -> Period:
    """Of ``YYYY-MM``, from local midnight to local midnight.  Raises RequestInvalid."""
    local = time_zone(zone)
    following = next_month(month)  # which looks at its form
    return Period(_begin(month, local), _begin(following, local))


def month_of(instant: datetime, zone: str = "UTC") -> str:
    """The month that holds ``instant`` there."""
    local = instant.astimezone(time_zone(zone))
    return f"{local.year:04d}-{local.month:02d}"


def next_month(month: str) -> str:
    """Raises RequestInvalid."""
    if _MONTH.fullmatch(month) is None:
        raise RequestInvalid(f"expected a month such as 2026-11, got {month!r}")
    year, number = int(month[:4]), int(month[5:])
    if not 1 <= year < 9999:
        raise RequestInvalid(f"expected a month of the years 1 to 9998, got {month!r}")
    return f"{year + number // 12:04d}-{number % 12 + 1:02d}"


def _begin(month: str, local: ZoneInfo) -> datetime:
    try:
        return datetime(int(month[:4]), int(month[5:]), 1, tzinfo=local).astimezone(UTC)
    except OverflowError as exc:  # the year 1, east of Greenwich
        raise RequestInvalid(f"expected a month of the years 1 to 9998, got {month!r}") from exc
