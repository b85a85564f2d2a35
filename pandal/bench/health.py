"""Whether the generator itself was the bottleneck: its processor, its loop, its lateness."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TICK_S = 0.01
_WINDOW_S = 1.0
BUSY_CPU_RATIO = 0.9
LATE_S = 0.02  # what a first token takes on a fast server; an error of less is noise


@dataclass(frozen=True, slots=True)
class Health:
    cpu_ratio: float  # of one core, mean over the run
    busiest_cpu_ratio: float  # of one core, in the busiest second
    loop_lags_s: Sequence[float]


class HealthMeter:
    """Measures from its construction, inside a running loop, to ``stop``."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.perf_counter,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock_s = clock_s
        self._cpu_s = cpu_s
        self._lags_s: list[float] = []
        self._ratios: list[float] = []
        self._started = self._window = (clock_s(), cpu_s())
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> Health:
        self._task.cancel()
        await asyncio.wait([self._task])
        mean_ratio = self._ratio_since(self._started)
        return Health(mean_ratio, max(self._ratios, default=mean_ratio), self._lags_s)

    async def _watch(self) -> None:
        while True:
            before_s = self._clock_s()
            await asyncio.sleep(_TICK_S)
            now_s = self._clock_s()
            self._lags_s.append(max(0.0, now_s - before_s - _TICK_S))
            if now_s - self._window[0] >= _WINDOW_S:
                self._ratios.append(self._ratio_since(self._window))
                self._window = (now_s, self._cpu_s())

    def _ratio_since(self, start: tuple[float, float]) -> float:
        wall_s = self._clock_s() - start[0]
        return (self._cpu_s() - start[1]) / wall_s if wall_s > 0 else 0.0
