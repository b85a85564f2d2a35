"""Windows of the week in the users' time zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decision import Code
from autoscaler.errors import BadPolicy
from autoscaler.schedule import Schedule
from tests.autoscaler.pools import Scene, policy

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


OFFICE = Schedule("0 8 * * 1-5", duration_s=10 * 3600, min_replicas=6, time_zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("when", "is_covered"),
    [
        ("2026-11-30T07:59:00", False),  # a Monday
        ("2026-11-30T08:00:00", True),
        ("2026-11-30T17:59:59", True),
        ("2026-11-30T18:00:30", False),
        ("2026-11-29T12:00:00", False),  # a Sunday
        ("2026-07-01T08:00:00", True),  # summer time: an hour earlier in UTC
        ("2026-07-01T07:30:00", False),
    ],
)
def test_office_hours_follow_the_wall_clock(when: str, is_covered: bool) -> None:
    assert OFFICE.covers(at(when)) is is_covered


def test_a_start_that_summer_time_skips_counts_at_its_end() -> None:
    early = Schedule("30 2 * * *", duration_s=600, min_replicas=1, time_zone="Europe/Berlin")
    assert early.covers(at("2026-03-29T03:05:00"))
    assert not early.covers(at("2026-03-29T01:59:00"))


def test_a_window_goes_over_midnight() -> None:
    night = Schedule("0 22 * * 5", duration_s=6 * 3600, min_replicas=1, time_zone="Europe/Berlin")
    assert night.covers(at("2026-11-28T03:59:00"))
    assert not night.covers(at("2026-11-29T03:00:00"))


def test_day_and_weekday_are_either_as_in_crontab() -> None:
    either = Schedule("0 12 1 * 1", duration_s=60, min_replicas=1)
    utc = ZoneInfo("UTC")
    assert either.covers(at("2026-12-01T12:00:00", utc))  # the first, a Tuesday
    assert either.covers(at("2026-12-07T12:00:00", utc))  # a Monday
    assert not either.covers(at("2026-12-02T12:00:00", utc))


def test_steps_ranges_and_sunday_twice() -> None:
    assert Schedule("*/15 * * * 7", duration_s=60, min_replicas=1).covers(
        at("2026-11-29T10:45:00", ZoneInfo("UTC"))
    )


@pytest.mark.parametrize(
    ("cron", "zone"),
    [("* * * *", "UTC"), ("61 * * * *", "UTC"), ("a * * * *", "UTC"), ("* * * * *", "Mars/Base")],
)
def test_what_is_no_schedule_is_refused(cron: str, zone: str) -> None:
    with pytest.raises(BadPolicy, match="schedule"):
        Schedule(cron, duration_s=60, min_replicas=1, time_zone=zone)


def test_replicas_are_ordered_a_cold_start_before_the_window() -> None:
    scene = Scene(policy(schedules=(OFFICE,)), ordered=1)
    scene.now_s = at("2026-11-30T07:50:00")
    decisions = [scene.obey(0.1) for _ in range(40)]
    ordered_at = next(d.at_s for d in decisions if d.num_wanted == 6)
    assert at("2026-11-30T08:00:00") - 240 <= ordered_at <= at("2026-11-30T08:00:00") - 180
    assert Code.SCHEDULE in next(d for d in decisions if d.num_wanted == 6).codes


def test_two_thirds_of_an_hour_is_no_duration_problem_but_a_second_is() -> None:
    with pytest.raises(BadPolicy, match="60 s"):
        Schedule("* * * * *", duration_s=1, min_replicas=1)


def minute_by_minute(hours: tuple[int, ...], minutes: tuple[int, ...], at_s: float) -> bool:
    """Whether the wall clock has shown, or skipped, such a reading in the last three hours."""
    minute = datetime.fromtimestamp(at_s - at_s % 60, UTC)
    for _ in range(180):
        local, before = (
            (minute - timedelta(minutes=less)).astimezone(BERLIN).replace(tzinfo=None)
            for less in (0, 1)
        )
        while before < local:
            before += timedelta(minutes=1)
            if before.hour in hours and before.minute in minutes:
                return True
        if before > local and local.hour in hours and local.minute in minutes:
            return True
        minute -= timedelta(minutes=1)
    return False


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["2026-03-28T20:00", "2026-10-24T20:00", "2026-11-29T20:00"]),
    st.integers(0, 14 * 60),
    st.integers(0, 23),
    st.integers(0, 59),
)
def test_days_then_minutes_find_what_a_walk_by_minutes_finds(
    begin: str, minutes: int, hour: int, minute: int
) -> None:
    """Around both changes of the clock, and on a quiet night."""
    at_s = at(begin) + 60.0 * minutes + 7.0
    schedule = Schedule(
        f"{minute} {hour} * * *", duration_s=3 * 3600, min_replicas=1, time_zone="Europe/Berlin"
    )
    assert schedule.covers(at_s) is minute_by_minute((hour,), (minute,), at_s)
