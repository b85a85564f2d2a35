"""Windows: by the clock of their zone, over midnight, over the change of summer time."""

from datetime import UTC, datetime

import pytest

from contracts.errors import ContractError
from contracts.windows import Day, TimeWindow

OFFICE = TimeWindow(
    opens="09:00", closes="17:00", days=(Day.MONDAY, Day.TUESDAY), zone="Europe/Berlin"
)
NIGHT = TimeWindow(opens="22:00", closes="06:00", days=(Day.SUNDAY,))


@pytest.mark.parametrize(
    ("window", "at", "is_open"),
    [
        pytest.param(OFFICE, "2026-11-30T08:00", True, id="opens"),
        pytest.param(OFFICE, "2026-11-30T07:59", False, id="before"),
        pytest.param(OFFICE, "2026-11-30T16:00", False, id="closes"),
        pytest.param(OFFICE, "2026-12-02T10:00", False, id="another-day"),
        pytest.param(OFFICE, "2026-06-01T07:00", True, id="summer-time"),
        pytest.param(NIGHT, "2026-11-29T23:00", True, id="evening"),
        pytest.param(NIGHT, "2026-11-30T05:59", True, id="after-midnight-and-the-week's-end"),
        pytest.param(NIGHT, "2026-11-30T06:00", False, id="morning"),
        pytest.param(NIGHT, "2026-11-30T23:00", False, id="the-next-evening"),
    ],
)
def test_a_window_is_open_by_the_clock_of_its_zone(
    window: TimeWindow, at: str, is_open: bool
) -> None:
    assert window.is_open(datetime.fromisoformat(at).replace(tzinfo=UTC)) is is_open


def test_windows_overlap_over_midnight() -> None:
    early = TimeWindow(opens="05:00", closes="07:00", days=(Day.MONDAY,))
    assert NIGHT.overlaps(early)
    assert not NIGHT.overlaps(TimeWindow(opens="06:00", closes="07:00"))


def test_a_zone_that_nobody_knows_is_named() -> None:
    nowhere = TimeWindow(opens="05:00", closes="07:00", zone="Moon/Far_Side")
    with pytest.raises(ContractError, match="Far_Side"):
        nowhere.is_open(datetime.now(UTC))
