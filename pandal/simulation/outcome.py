"""What a run cost and what it did to users."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pandal.simulation.arrivals import Arrival

NUM_SAMPLES: Final = 45


@dataclass(frozen=True, slots=True)
class Outcome:
    autoscaler: str
    num_requests: int
    num_late: int  # first token after the target, or none until the end
    ttft_p95_s: float
    gpu_hours: float  # of every pod that holds one: starting, serving, ending
    num_changes: int  # of the count
    num_flips: int  # changes against the direction of the one before
    num_killed: int  # streams cut by a scale-down
    num_failed: int  # streams cut by a node
    most_gpus: int
    gpus_over_time: tuple[int, ...]  # at NUM_SAMPLES even times


class Tally:
    def __init__(self, ttft_slo_s: float) -> None:
        self._ttft_slo_s = ttft_slo_s
        self._ttfts_s: list[float] = []
        self._gpu_s = 0.0
        self._gpus_now = 0
        self._gpus_since_s = 0.0
        self._most_gpus = 0
        self._gpu_changes: list[tuple[float, int]] = []
        self._num_changes = 0
        self._num_flips = 0
        self._went_up: bool | None = None
        self.num_killed = 0
        self.num_failed = 0

    def first_token(self, ttft_s: float) -> None:
        self._ttfts_s.append(ttft_s)

    def gpus(self, now_s: float, num_gpus: int) -> None:
        self._gpu_s += self._gpus_now * (now_s - self._gpus_since_s)
        self._gpus_now, self._gpus_since_s = num_gpus, now_s
        self._most_gpus = max(self._most_gpus, num_gpus)
        self._gpu_changes.append((now_s, num_gpus))

    def ordered(self, before: int, after: int) -> None:
        if before == after:
            return
        goes_up = after > before
        self._num_changes += 1
        self._num_flips += self._went_up is not None and goes_up != self._went_up
        self._went_up = goes_up

    def end(self, now_s: float, waiting: Iterable[Arrival]) -> None:
        """Who waits still has waited so long at least."""
        self._ttfts_s += [now_s - arrival.at_s for arrival in waiting]
        self.gpus(now_s, self._gpus_now)

    def outcome(self, autoscaler: str) -> Outcome:
        ttfts = sorted(self._ttfts_s)
        return Outcome(
            autoscaler=autoscaler,
            num_requests=len(ttfts),
            num_late=sum(ttft > self._ttft_slo_s for ttft in ttfts),
            ttft_p95_s=ttfts[int(0.95 * (len(ttfts) - 1))] if ttfts else 0.0,
            gpu_hours=self._gpu_s / 3600,
            num_changes=self._num_changes,
            num_flips=self._num_flips,
            num_killed=self.num_killed,
            num_failed=self.num_failed,
            most_gpus=self._most_gpus,
            gpus_over_time=self._samples(),
        )

    def _samples(self) -> tuple[int, ...]:
        end_s = self._gpu_changes[-1][0]
        found, index = [], 0
        for sample in range(NUM_SAMPLES):
            at_s = (sample + 0.5) * end_s / NUM_SAMPLES
            while index + 1 < len(self._gpu_changes) and self._gpu_changes[index + 1][0] <= at_s:
                index += 1
            found.append(self._gpu_changes[index][1])
        return tuple(found)
