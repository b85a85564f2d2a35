"""Pauses between attempts."""

from gateway.backoff import backoff_s


def test_pauses_grow_step_by_step_and_the_last_stays() -> None:
    steps_s = (0.1, 0.5, 2.0)
    assert [backoff_s(steps_s, n) for n in range(1, 6)] == [0.1, 0.5, 2.0, 2.0, 2.0]
