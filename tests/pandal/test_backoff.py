from hypothesis import given
from hypothesis import strategies as st

from pandal.child import FIRST_DELAY_S, LONGEST_DELAY_S, RestartBackoff


@given(st.lists(st.floats(min_value=0, max_value=59.9), max_size=2_000))
def test_delays_never_shrink_nor_leave_their_bounds(uptimes_s: list[float]) -> None:
    backoff = RestartBackoff()
    delays_s = [backoff.delay_after_s(uptime_s) for uptime_s in uptimes_s]
    assert delays_s == sorted(delays_s)
    assert all(FIRST_DELAY_S <= delay_s <= LONGEST_DELAY_S for delay_s in delays_s)


def test_a_healthy_minute_is_a_fresh_start() -> None:
    backoff = RestartBackoff()
    delays_s = [backoff.delay_after_s(uptime_s) for uptime_s in (1, 1, 1, 60, 1)]
    assert delays_s == [0.5, 1, 2, 0.5, 1]
