"""What happened to requests, in numbers.  Knows no tenant, no prompt and no clock."""

import bisect
from collections.abc import Sequence
from itertools import accumulate

from contracts.metrics import ITERATION_TOKENS_BUCKETS, LATENCY_BUCKETS_S


class Histogram:
    """Buckets as Prometheus counts them: cumulative, with ``le`` bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def cumulative_counts(self) -> list[int]:
        """One per bound, and the total last."""
        return list(accumulate(self._counts))


class Telemetry:
    def __init__(self) -> None:
        self.time_to_first_token_s = Histogram(LATENCY_BUCKETS_S)
        self.inter_token_latency_s = Histogram(LATENCY_BUCKETS_S)
        self.end_to_end_latency_s = Histogram(LATENCY_BUCKETS_S)
        self.queue_time_s = Histogram(LATENCY_BUCKETS_S)
        self.iteration_tokens = Histogram(ITERATION_TOKENS_BUCKETS)
        self.num_finished = {"stop": 0, "length": 0, "abort": 0, "error": 0, "deadline": 0}
