"""One rounding, and nothing lost between lines and total; months as each time zone has them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import RequestInvalid
from billing.invoice import InvoiceLine, LineKind, allotted, carried_over
from billing.money import cents_half_even, usd_from_pico_usd
from billing.periods import month_of, month_period, next_month

CENT = 10**10  # pico-dollars

amounts = st.lists(st.integers(min_value=-(10**16), max_value=10**16), max_size=40)


def lines_of(*pico_usd: int) -> list[InvoiceLine]:
    return [InvoiceLine(LineKind.USAGE, "2026-11", "m", None, None, 0, each) for each in pico_usd]


@given(amounts)
def test_lines_sum_to_the_total_which_is_rounded_once(pico_usd: list[int]) -> None:
    shares = [line.cents for line in allotted(lines_of(*pico_usd))]
    assert sum(shares) == cents_half_even(usd_from_pico_usd(sum(pico_usd))) * 100
    assert all(abs(c * CENT - p) < CENT for c, p in zip(shares, pico_usd, strict=True))


def test_eighty_one_small_lines_do_not_drift() -> None:
    """useautumn/autumn#3407: rounded each by itself they were two cents off."""
    assert sum(line.cents for line in allotted(lines_of(*[CENT * 4 // 10] * 81))) == 32


@pytest.mark.parametrize(
    ("pico_usd", "cents"),
    [
        ((CENT // 2,), (0,)),
        ((CENT * 3 // 2,), (2,)),
        ((CENT // 2, CENT // 2), (1, 0)),
        ((-CENT // 2, CENT), (-1, 1)),
        ((), ()),
        ((0,), (0,)),
    ],
    ids=["half down to even", "half up to even", "equal rests by order", "credit", "none", "zero"],
)
def test_cents_are_given_by_largest_remainder(
    pico_usd: tuple[int, ...], cents: tuple[int, ...]
) -> None:
    assert tuple(line.cents for line in allotted(lines_of(*pico_usd))) == cents


@given(amounts)
def test_an_invoice_is_never_negative_and_what_is_owed_is_carried_whole(
    pico_usd: list[int],
) -> None:
    lines = carried_over(lines_of(*pico_usd), "2026-11")
    carried = sum(line.pico_usd for line in lines if line.kind is LineKind.CARRIED_OUT)
    assert sum(line.pico_usd for line in lines) == max(0, sum(pico_usd))
    assert carried == max(0, -sum(pico_usd))


@pytest.mark.parametrize(
    ("month", "zone", "begins", "hours"),
    [
        ("2026-11", "UTC", datetime(2026, 11, 1, tzinfo=UTC), 30 * 24),
        ("2026-03", "Europe/Paris", datetime(2026, 2, 28, 23, tzinfo=UTC), 31 * 24 - 1),
        ("2026-10", "Europe/Paris", datetime(2026, 9, 30, 22, tzinfo=UTC), 31 * 24 + 1),
        ("2026-12", "Pacific/Kiritimati", datetime(2026, 11, 30, 10, tzinfo=UTC), 31 * 24),
        ("2026-12", "America/Denver", datetime(2026, 12, 1, 7, tzinfo=UTC), 31 * 24),
        ("2028-02", "Asia/Kolkata", datetime(2028, 1, 31, 18, 30, tzinfo=UTC), 29 * 24),
        ("2026-04", "Africa/Cairo", datetime(2026, 3, 31, 22, tzinfo=UTC), 30 * 24 - 1),
    ],
)
def test_a_month_is_from_local_midnight_to_local_midnight(
    month: str, zone: str, begins: datetime, hours: int
) -> None:
    period = month_period(month, zone)
    assert period.begins_at == begins
    assert period.ends_at - period.begins_at == timedelta(hours=hours)
    assert month_of(period.begins_at, zone) == month
    assert month_of(period.ends_at - timedelta(microseconds=1), zone) == month
    assert month_of(period.ends_at, zone) == next_month(month)


@given(
    st.integers(2000, 2100),
    st.integers(1, 12),
    st.sampled_from(["UTC", "Europe/Paris", "Pacific/Kiritimati", "America/Denver", "Asia/Kabul"]),
)
def test_months_of_a_zone_leave_no_instant_out_and_hold_none_twice(
    year: int, number: int, zone: str
) -> None:
    month = f"{year}-{number:02d}"
    assert month_period(month, zone).ends_at == month_period(next_month(month), zone).begins_at


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "26-01", "", "0000-01", "9999-12"])
def test_what_is_no_month_is_refused(month: str) -> None:
    with pytest.raises(RequestInvalid):
        month_period(month)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "a\0b"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(RequestInvalid):
        month_period("2026-11", zone)
