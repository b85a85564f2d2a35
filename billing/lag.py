"""How far the ledger is behind what the brokers hold.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Lag:
    """By partition, each in both."""

    ends: Mapping[str, int]  # where its next record will stand
    read: Mapping[str, int]  # where the ledger reads on

    @property
    def num_unread(self) -> int:
        return sum(self.ends.values()) - sum(self.read.values())

    def has_passed(self, ends: Mapping[str, int]) -> bool:
        """A partition that is gone has been read by nobody: its topic was made anew."""
        return all(name in self.read and self.read[name] >= end for name, end in ends.items())


NO_LAG: Final = Lag(ends={}, read={})  # without brokers
