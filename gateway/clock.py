"""Time and identity are inputs: components get these, and tests give their own."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Clock:
    wall_s: Callable[[], float]  # seconds since 1970, UTC
    monotonic_s: Callable[[], float]

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall_s(), UTC)


REQUEST_PREFIX = "req_"
_NUM_ENDING = 20  # digits of an id behind its time: all but two are random
_NUM_DRAWN = 256  # ids whose random digits are fetched at once: a system call is slow

SYSTEM_CLOCK = Clock(time.time, time.monotonic)


def random_digits(num_digits: int) -> str:
    """Of the system's randomness, in hexadecimal."""
    return os.urandom(num_digits // 2 + 1).hex()[:num_digits]


class IdMaker:
    def __init__(self, clock: Clock, random_digits: Callable[[int], str]) -> None:
        self._clock = clock
        self._random_digits = random_digits
        self._endings: list[str] = []  # of ids to come

    def request_id(self) -> str:
        """A UUID of version 7 (RFC 9562, 5.7) in its digits: sorts by the millisecond."""
        if not self._endings:
            self._draw()
        return f"{REQUEST_PREFIX}{int(self._clock.wall_s() * 1000):012x}{self._endings.pop()}"

    def boot_id(self) -> str:
        return f"{int(self._clock.wall_s() * 1000):012x}{self._random_digits(8)}"

    def _draw(self) -> None:
        drawn = bytearray(self._random_digits(_NUM_ENDING * _NUM_DRAWN), "ascii")
        drawn[0::_NUM_ENDING] = b"7" * _NUM_DRAWN  # its version
        drawn[4::_NUM_ENDING] = b"8" * _NUM_DRAWN  # its variant
        digits = drawn.decode()
        self._endings = [digits[n : n + _NUM_ENDING] for n in range(0, len(digits), _NUM_ENDING)]


def event_id_of(request_id: str) -> str:
    """One admitted request is one event, and both have the same digits."""
    return request_id.removeprefix(REQUEST_PREFIX)
