"""Replicas that fail much more often than the others, and get nothing for a while.

Not those that fail as often as all do: that has another cause, and would leave nobody.  For the
same reason never more than half of them are ejected.
"""

from typing import Final

_LEAST_FAILURES: Final = 5  # lately
_LEAST_RATIO: Final = 0.5  # of its requests
_TIMES_THE_OTHERS: Final = 3.0
_FADE: Final = 0.9  # of what is remembered, a second: half of it is gone after seven
_FIRST_S: Final = 10.0  # doubled each time, as long as it goes on
_MOST_S: Final = 160.0


class Record:
    """One replica's."""

    def __init__(self) -> None:
        self.num_requests = self.num_failures = 0.0  # lately
        self.until_s = float("-inf")  # it is ejected
        self.num_times = 0

    def note(self, *, is_failure: bool) -> None:
        self.num_requests += 1.0
        self.num_failures += is_failure

    def fade(self) -> None:
        self.num_requests *= _FADE
        self.num_failures *= _FADE
        if self.num_requests >= 1.0 and self.num_failures < 0.1:
            self.num_times = 0  # it is well again


def eject(records: dict[str, Record], now_s: float) -> frozenset[str]:
    """About once a second: the names of those that are ejected until then."""
    for record in records.values():
        record.fade()
    ejected = {name for name, record in records.items() if record.until_s > now_s}
    for name in sorted(records, key=lambda name: -records[name].num_failures):
        record = records[name]
        others = [other for other in records.values() if other is not record]
        if name not in ejected and _is_outlier(record, others):
            if len(ejected) + 1 > len(records) // 2:
                break
            record.num_times += 1
            record.until_s = now_s + min(_MOST_S, _FIRST_S * 2.0 ** (record.num_times - 1))
            record.num_requests = record.num_failures = 0.0  # it begins anew then
            ejected.add(name)
    return frozenset(ejected)


def _is_outlier(record: Record, others: list[Record]) -> bool:
    if record.num_failures < _LEAST_FAILURES:
        return False
    ratio = record.num_failures / record.num_requests
    num_requests = sum(other.num_requests for other in others)
    usual = sum(other.num_failures for other in others) / num_requests if num_requests else 0.0
    return ratio >= _LEAST_RATIO and ratio >= _TIMES_THE_OTHERS * usual
