"""Times of the week at which a pool must have more replicas, in the time zone of its users.

A schedule begins when its cron expression fires and lasts ``duration_s``.  Knows no clock: the
instant is an argument.  A local time that a change to summer time leaves out counts as its end;
one that comes twice in autumn fires twice, which for a window is the same as once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from autoscaler.errors import BadPolicy

_FIELDS: Final = (
    ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7),
)  # fmt: skip
_MINUTE: Final = timedelta(minutes=1)
MAX_DURATION_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Schedule:
    cron: str  # minute hour day month weekday, as in crontab(5); Sunday is 0 and 7
    duration_s: float
    min_replicas: int
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        _parse(self.cron)
        if not 60 <= self.duration_s <= MAX_DURATION_S:
            raise BadPolicy(f"schedule: 60 s to 7 days expected, got {self.duration_s:g} s")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError) as exc:
            raise BadPolicy(f"schedule: '{self.time_zone}' is no known time zone") from exc

    def covers(self, at_s: float) -> bool:
        fields, zone = _parse(self.cron), ZoneInfo(self.time_zone)
        minute = datetime.fromtimestamp(at_s, UTC).replace(second=0, microsecond=0)
        first = datetime.fromtimestamp(at_s - self.duration_s, UTC)
        while minute > first:
            if any(_fires(fields, local) for local in _local_minutes(minute, zone)):
                return True
            minute -= _MINUTE
        return False


def _local_minutes(minute: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """The wall clock's reading; with those that it has just skipped."""
    local = minute.astimezone(zone).replace(tzinfo=None)
    skipped = (minute - _MINUTE).astimezone(zone).replace(tzinfo=None) + _MINUTE
    while skipped < local:
        yield skipped
        skipped += _MINUTE
    yield local


def _fires(fields: tuple[frozenset[int], ...], local: datetime) -> bool:
    minutes, hours, days, months, weekdays = fields
    if local.minute not in minutes or local.hour not in hours or local.month not in months:
        return False
    is_day = local.day in days
    is_weekday = local.isoweekday() % 7 in weekdays
    # crontab(5): when both are restricted, either is enough.
    if len(days) < 31 and len(weekdays) < 7:
        return is_day or is_weekday
    return is_day and is_weekday


def _parse(cron: str) -> tuple[frozenset[int], ...]:
    parts = cron.split()
    if len(parts) != len(_FIELDS):
        raise BadPolicy(f"schedule: five fields expected, got '{cron}'")
    minutes, hours, days, months, weekdays = (
        _parse_field(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    return minutes, hours, days, months, frozenset(day % 7 for day in weekdays)


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
