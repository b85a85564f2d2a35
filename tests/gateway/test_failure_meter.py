"""Who keeps failing waits; how many addresses are remembered is bounded."""

import pytest

from gateway.failure_meter import FailureMeter


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_failures_are_forgiven_with_time() -> None:
    time = Time()
    meter = FailureMeter(time, burst=2, per_minute=6)
    assert meter.wait_s("a") == 0
    for _ in range(2):
        meter.note("a")
    assert meter.wait_s("a") == pytest.approx(10)
    assert meter.wait_s("b") == 0
    time.now_s = 9.0
    assert meter.wait_s("a") == pytest.approx(1)
    time.now_s = 60.0
    assert meter.wait_s("a") == 0


def test_the_address_that_failed_longest_ago_is_forgotten_first() -> None:
    meter = FailureMeter(Time(), burst=1, per_minute=1, max_addresses=2)
    for address in ("a", "b", "a", "c"):
        meter.note(address)
    assert [meter.wait_s(address) > 0 for address in "abc"] == [True, False, True]
