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


_RANDOM_BLOCK_BYTES = 4_096
_REQUEST = "req_"

SYSTEM_CLOCK = Clock(time.time, time.monotonic)


class RandomDigits:
    """The system's randomness in hexadecimal, fetched in blocks: a system call is slow."""

    def __init__(self) -> None:
        self._block = ""
        self._position = 0

    def __call__(self, num_digits: int) -> str:
        start, end = self._position, self._position + num_digits
        if end > len(self._block):
            self._block = os.urandom(max(_RANDOM_BLOCK_BYTES, num_digits)).hex()
            start, end = 0, num_digits
        self._position = end
        return self._block[start:end]


@dataclass(frozen=True, slots=True)
class IdMaker:
    clock: Clock
    random_digits: Callable[[int], str]

    def request_id(self) -> str:
        """A UUID of version 7 (RFC 9562, 5.7) in its digits: sorts by the millisecond."""
        random = self.random_digits(18)
        return f"{_REQUEST}{int(self.clock.wall_s() * 1000):012x}7{random[:3]}8{random[3:]}"

    def boot_id(self) -> str:
        return f"{int(self.clock.wall_s() * 1000):012x}{self.random_digits(8)}"


def event_id_of(request_id: str) -> str:
    """One admitted request is one event, and both have the same digits."""
    return request_id.removeprefix(_REQUEST)
