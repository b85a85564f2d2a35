"""When a statement of a policy holds: a part of the day, on some days of the week, somewhere.

Windows have the resolution of a minute.
"""

import enum
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec

from contracts.errors import ContractError

_MINUTES_A_DAY = 1_440
_MINUTES_A_WEEK = 7 * _MINUTES_A_DAY
_TimeOfDay = Annotated[str, msgspec.Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class Day(enum.StrEnum):
    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


_DAYS = tuple(Day)


class TimeWindow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="time.window.v1",
    omit_defaults=True,
):
    """Open from ``opens`` up to ``closes``, by the clock of ``zone``, beginning on ``days``.

    One that closes no later than it opens goes on into the next day.
    """

    opens: _TimeOfDay
    closes: _TimeOfDay
    days: tuple[Day, ...] = _DAYS
    zone: str = "UTC"  # of the IANA database

    def is_open(self, at: datetime) -> bool:
        """Raises ContractError for a zone that nobody knows."""
        local = at.astimezone(zone_of(self.zone))
        minute = (local.weekday() * 24 + local.hour) * 60 + local.minute
        return any(first <= minute < end for first, end in self.minutes())

    def minutes(self) -> Iterator[tuple[int, int]]:
        """Of the week, from Monday 0:00: first, and the one after the last."""
        opens, closes = _minute_of_day(self.opens), _minute_of_day(self.closes)
        length = closes - opens if closes > opens else closes - opens + _MINUTES_A_DAY
        for day in self.days:
            first = _DAYS.index(day) * _MINUTES_A_DAY + opens
            end = first + length
            yield first, min(end, _MINUTES_A_WEEK)
            if end > _MINUTES_A_WEEK:
                yield 0, end - _MINUTES_A_WEEK

    def overlaps(self, other: "TimeWindow") -> bool:
        """Of two in one zone."""
        return any(
            first < other_end and other_first < end
            for first, end in self.minutes()
            for other_first, other_end in other.minutes()
        )

    @property
    def words(self) -> str:
        days = "" if self.days == _DAYS else f"{','.join(self.days)} "
        return f"{days}{self.opens}-{self.closes} {self.zone}"


def zone_of(name: str) -> ZoneInfo:
    """Raises ContractError."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as exc:  # not found is a KeyError
        raise ContractError(f"expected a time zone such as Europe/Berlin, got {name!r}") from exc


def _minute_of_day(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return int(hours) * 60 + int(minutes)
