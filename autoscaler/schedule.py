"""Times of the week at which a pool must have more replicas, in the time zone of its users.

A schedule begins when its cron expression fires and lasts ``duration_s``.  Knows no clock: the
instant is an argument.  A local time that a change to summer time leaves out counts as its end;
one that comes twice in autumn fires twice, which for a window is the same as once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from autoscaler.errors import BadPolicy

_FIELDS: Final = (
    ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7),
)  # fmt: skip
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
MAX_DURATION_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Schedule:
    cron: str  # minute hour day month weekday, as in crontab(5); Sunday is 0 and 7
    duration_s: float
    min_replicas: int
    time_zone: str = "UTC"
    _fields: "_Fields" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", _parse(self.cron))
        if not 60 <= self.duration_s <= MAX_DURATION_S:
            raise BadPolicy(f"schedule: 60 s to 7 days expected, got {self.duration_s:g} s")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError) as exc:
            raise BadPolicy(f"schedule: '{self.time_zone}' is no known time zone") from exc

    def covers(self, at_s: float) -> bool:
        """Whether it fired in the last ``duration_s``; the newest instants are looked at first."""
        zone, after_s = ZoneInfo(self.time_zone), at_s - self.duration_s
        day, first = (datetime.fromtimestamp(s, zone).date() for s in (at_s, after_s))
        while day >= first:
            for wall in self._fields.walls_of(day):
                if any(after_s < fired_s <= at_s for fired_s in _instants(wall, zone)):
                    return True
            day -= _DAY
        return False


@dataclass(frozen=True, slots=True)
class _Fields:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    def walls_of(self, day: date) -> Iterator[datetime]:
        """The readings of the wall clock at which it fires on that day, the last one first."""
        if not self._is_on(day):
            return
        for hour in sorted(self.hours, reverse=True):
            for minute in sorted(self.minutes, reverse=True):
                yield datetime.combine(day, time(hour, minute))

    def _is_on(self, day: date) -> bool:
        is_day = day.day in self.days
        is_weekday = day.isoweekday() % 7 in self.weekdays
        # crontab(5): when both are restricted, either is enough.
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return day.month in self.months and (is_day or is_weekday)
        return day.month in self.months and is_day and is_weekday


def _instants(wall: datetime, zone: ZoneInfo) -> tuple[float, float]:
    """When the wall clock shows it: twice the same, but in autumn; skipped: when it shows more."""
    while True:
        first_s, second_s = (wall.replace(tzinfo=zone, fold=f).timestamp() for f in (0, 1))
        if first_s <= second_s:  # PEP 495: the other way round only for what is skipped
            return first_s, second_s
        wall += _MINUTE


def _parse(cron: str) -> _Fields:
    parts = cron.split()
    if len(parts) != len(_FIELDS):
        raise BadPolicy(f"schedule: five fields expected, got '{cron}'")
    minutes, hours, days, months, weekdays = (
        _parse_field(part, *field_) for part, field_ in zip(parts, _FIELDS, strict=True)
    )
    return _Fields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays))


def _parse_field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        try:
            begin, end = int(first), int(last or first)
            stride = int(step or 1)
        except ValueError as exc:
            raise BadPolicy(f"schedule: {name} '{text}' is not numbers, '-', ',' and '/'") from exc
        if step and not last:
            end = high
        if not low <= begin <= end <= high or stride < 1:
            raise BadPolicy(f"schedule: {name} '{text}' is not within {low} to {high}")
        found.update(range(begin, end + 1, stride))
    return frozenset(found)
