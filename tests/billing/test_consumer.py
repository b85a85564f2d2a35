"""How the loop behaves while the ledger or the source refuses."""

from hypothesis import given
from hypothesis import strategies as st

from billing.consumer import pause_after_failures_s


@given(st.floats(min_value=0.001, max_value=60), st.integers(min_value=1, max_value=10**12))
def test_a_pause_never_shrinks_nor_exceeds_half_a_minute(
    poll_interval_s: float, num_failures: int
) -> None:
    pause_s = pause_after_failures_s(poll_interval_s, num_failures)
    assert min(poll_interval_s, 30) <= pause_s <= 30
    assert pause_s <= pause_after_failures_s(poll_interval_s, num_failures + 1)


def test_the_first_failures_double_the_pause() -> None:
    assert [pause_after_failures_s(0.2, n) for n in (1, 2, 3)] == [0.4, 0.8, 1.6]
