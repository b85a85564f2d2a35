"""What /health says, and that work which takes long is no hang."""

from datetime import UTC, datetime

import pytest

from billing.errors import SourceUnavailable
from billing.ledger import PostResult
from billing.telemetry import Telemetry, Told

NOTHING = PostResult(num_events=0, num_posted=0, num_repeated=0, num_unpriced=0, num_dead=0)
LONG_S = 601.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told(clock: Clock) -> Told:
    return Told(lambda: datetime(2026, 3, 1, tzinfo=UTC), clock)


def health(told: Told) -> tuple[str, str]:
    status, body = Telemetry(told).page([b"/health"])
    return status, body.splitlines()[0]


def test_it_is_ok_after_the_start_and_hung_when_nothing_moves(clock: Clock, told: Told) -> None:
    assert health(told) == ("200 OK", "ok")
    clock.now_s = LONG_S
    assert health(told) == ("503 Service Unavailable", "hung")


def test_opening_the_books_is_no_hang_however_long_it_takes(clock: Clock, told: Told) -> None:
    with told.opening():
        clock.now_s = LONG_S
        assert health(told) == ("200 OK", "opening")
    assert health(told) == ("200 OK", "ok")


def test_what_cannot_be_read_pauses_it_and_a_new_process_would_not_help(told: Told) -> None:
    told.note_paused(SourceUnavailable.__name__)
    assert health(told) == ("200 OK", "paused SourceUnavailable")
    told.note_read()
    assert health(told) == ("200 OK", "ok")


def test_each_transaction_is_progress(clock: Clock, told: Told) -> None:
    """A tick may rate a million events that waited, and post a batch of each partition."""
    for note in (told.note_progress, lambda: told.note_posted(NOTHING)):
        for _ in range(3):
            clock.now_s += LONG_S - 2.0
            note()
        assert health(told) == ("200 OK", "ok")
