"""What other gateways have a replica do, judging by its load reports.

Of what a report tells, the share of the requests that are not this gateway's.  An old report fades,
and what takes its place is what the others have on average: the one whose reports ended looks
neither idle nor busy.
"""

from collections.abc import Iterable
from typing import Final

from contracts.load import ReplicaLoad

FRESH_S: Final = 3.0  # three polls; a busy replica may answer late
_FADED_S: Final = 10.0


class OthersLoad:
    def __init__(self) -> None:
        self._tokens = 0.0
        self._reported_s = float("-inf")

    def report(self, load: ReplicaLoad, num_own_requests: int, now_s: float) -> None:
        num_requests = load.num_running + load.num_waiting
        told = load.queued_prompt_tokens + load.expected_output_tokens
        others = max(0, num_requests - num_own_requests)
        self._tokens = told * others / num_requests if num_requests else 0.0
        self._reported_s = now_s

    def report_requests(
        self, num_requests: int, num_own_requests: int, tokens_each: float, now_s: float
    ) -> None:
        """As ``report``, for a replica that counts requests only."""
        self._tokens = max(0, num_requests - num_own_requests) * tokens_each
        self._reported_s = now_s

    def forget(self) -> None:
        """Another replica may come back in its place."""
        self._reported_s = float("-inf")

    def is_fresh(self, now_s: float) -> bool:
        return now_s - self._reported_s <= FRESH_S

    def tokens(self, now_s: float, neutral_tokens: float) -> int:
        age_s = now_s - self._reported_s
        if age_s >= _FADED_S:
            return round(neutral_tokens)
        faded = max(0.0, age_s - FRESH_S) / (_FADED_S - FRESH_S)
        return round(self._tokens + faded * (neutral_tokens - self._tokens))

    @property
    def reported_tokens(self) -> float:
        return self._tokens


def neutral_tokens(loads: Iterable[OthersLoad], now_s: float) -> float | None:
    """The mean of the fresh ones; ``None``: there is none."""
    fresh = [load.reported_tokens for load in loads if load.is_fresh(now_s)]
    return sum(fresh) / len(fresh) if fresh else None
