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
_LOW_62_BITS = (1 << 62) - 1

SYSTEM_CLOCK = Clock(time.time, time.monotonic)


class RandomBits:
    """The system's randomness, asked for many numbers at a time: a system call for each is slow."""

    def __init__(self) -> None:
        self._block = b""
        self._position = 0

    def __call__(self, num_bits: int) -> int:
        num_bytes = -(-num_bits // 8)
        end = self._position + num_bytes
        if end > len(self._block):
            self._block = os.urandom(max(_RANDOM_BLOCK_BYTES, num_bytes))
            self._position, end = 0, num_bytes
        taken = int.from_bytes(self._block[self._position : end], "little")
        self._position = end
        return taken >> (num_bytes * 8 - num_bits)


@dataclass(frozen=True, slots=True)
class IdMaker:
    """Ids that sort by the millisecond they were made in: UUID version 7 (RFC 9562, 5.7)."""

    clock: Clock
    random_bits: Callable[[int], int]

    def uuid7(self) -> str:
        digits = self._uuid7_digits()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def request_id(self) -> str:
        return "req_" + self._uuid7_digits()

    def boot_id(self) -> str:
        return f"{int(self.clock.wall_s() * 1000):012x}{self.random_bits(32):08x}"

    def _uuid7_digits(self) -> str:
        unix_ms = int(self.clock.wall_s() * 1000) & 0xFFFF_FFFF_FFFF
        random = self.random_bits(74)
        random_a, random_b = random >> 62, random & _LOW_62_BITS
        return f"{unix_ms:012x}7{random_a:03x}{1 << 63 | random_b:016x}"
