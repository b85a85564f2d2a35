"""Who keeps failing has to wait: guessing a key is slow, however many guesses there are.

A bucket of failures for each address, and so many addresses at most.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_MAX_ADDRESSES: Final = 4_096


@dataclass(slots=True)
class _Failures:
    level: float  # how many more there may be
    at_s: float


class FailureMeter:
    def __init__(
        self,
        monotonic_s: Callable[[], float],
        *,
        burst: int,
        per_minute: int,
        max_addresses: int = _MAX_ADDRESSES,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._burst = burst
        self._per_s = per_minute / 60
        self._max_addresses = max_addresses
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()  # least lately failed first

    def wait_s(self, address: str) -> float:
        """Until it may try again; 0: now."""
        failures = self._by_address.get(address)
        if failures is None:
            return 0.0
        self._refill(failures)
        return max(0.0, (1 - failures.level) / self._per_s)

    def note(self, address: str) -> None:
        """One more."""
        failures = self._by_address.get(address)
        if failures is None:
            if len(self._by_address) >= self._max_addresses:
                self._by_address.popitem(last=False)
            failures = self._by_address[address] = _Failures(self._burst, self._monotonic_s())
        self._by_address.move_to_end(address)
        self._refill(failures)
        failures.level = max(0.0, failures.level - 1)

    def _refill(self, failures: _Failures) -> None:
        now_s = self._monotonic_s()
        gained = max(0.0, now_s - failures.at_s) * self._per_s
        failures.level = min(self._burst, failures.level + gained)
        failures.at_s = now_s
