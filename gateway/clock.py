"""Time and identity are inputs: components get these, and tests give their own."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Clock:
    wall_s: Callable[[], float]  # seconds since 1970, UTC
    monotonic_s: Callable[[], float]

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall_s(), UTC)


SYSTEM_CLOCK = Clock(time.time, time.monotonic)


@dataclass(frozen=True, slots=True)
class IdMaker:
    """Ids that sort by the millisecond they were made in: UUID version 7 (RFC 9562, 5.7)."""

    clock: Clock
    random_bits: Callable[[int], int]

    def uuid7(self) -> uuid.UUID:
        return uuid.UUID(int=self._uuid7_int())

    def request_id(self) -> str:
        return f"req_{self._uuid7_int():032x}"

    def boot_id(self) -> str:
        return f"{int(self.clock.wall_s() * 1000):012x}{self.random_bits(32):08x}"

    def _uuid7_int(self) -> int:
        unix_ms = int(self.clock.wall_s() * 1000) & 0xFFFF_FFFF_FFFF
        random = self.random_bits(74)
        random_a, random_b = random >> 62, random & ((1 << 62) - 1)
        return unix_ms << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b
