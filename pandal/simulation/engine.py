"""A queueing model of one replica: continuous batching as processor sharing with a step time.

All running sequences advance by one token a step; a step takes ``step_base_s`` and a little more
for each sequence.  A prefill stops the others for as long as it takes.  A virtual clock counts the
tokens that a sequence has got since the beginning, so a step costs nothing to simulate: only a
request's start and end do, O(log running) each.
"""

import heapq
from dataclasses import dataclass

from pandal.simulation.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Of one replica; the defaults are those of an 8B model's round figures on one GPU."""

    num_slots: int = 16
    step_base_s: float = 0.040
    step_per_sequence_s: float = 0.0006
    prefill_tokens_per_s: float = 20_000.0
    kv_tokens: int = 65_536

    def step_s(self, num_running: int) -> float:
        return self.step_base_s + self.step_per_sequence_s * num_running

    def requests_per_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Of a full replica: what `pandal plan` would say."""
        decode_s = output_tokens * self.step_s(self.num_slots) / self.num_slots
        return 1.0 / (decode_s + prompt_tokens / self.prefill_tokens_per_s)


class Engine:
    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._running: list[tuple[float, int, Arrival]] = []  # by virtual time of the last token
        self._virtual_tokens = 0.0
        self._pause_s = 0.0  # of prefills not yet done
        self._now_s = 0.0
        self._num_started = 0
        self.context_tokens = 0  # reserved for the requests' ends
        self._generated_tokens = 0.0  # since the beginning
        self._prompt_tokens = 0.0
        self.version = 0  # of the next end: an older one is not to happen

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def kv_cache_usage(self) -> float:
        return min(1.0, self.context_tokens / self._model.kv_tokens)

    def has_room(self, arrival: Arrival) -> bool:
        context = arrival.prompt_tokens + arrival.output_tokens
        fits = self.context_tokens + context <= self._model.kv_tokens or not self._running
        return len(self._running) < self._model.num_slots and fits

    def start(self, arrival: Arrival, now_s: float) -> float:
        """Seconds until its first token."""
        self._advance(now_s)
        self._pause_s += arrival.prompt_tokens / self._model.prefill_tokens_per_s
        end = self._virtual_tokens + arrival.output_tokens
        heapq.heappush(self._running, (end, self._num_started, arrival))
        self._num_started += 1
        self.context_tokens += arrival.prompt_tokens + arrival.output_tokens
        self.version += 1
        return self._pause_s + self._model.step_s(len(self._running))

    def next_end_s(self) -> float | None:
        """When the next request ends if nothing else starts; ``None``: none runs."""
        if not self._running:
            return None
        left = self._running[0][0] - self._virtual_tokens
        return self._now_s + self._pause_s + left * self._model.step_s(len(self._running))

    def end_one(self, now_s: float) -> Arrival:
        self._advance(now_s)
        end, _, arrival = heapq.heappop(self._running)
        self._virtual_tokens = max(self._virtual_tokens, end)
        self.context_tokens -= arrival.prompt_tokens + arrival.output_tokens
        self.version += 1
        return arrival

    def kill(self) -> list[Arrival]:
        """What ran, and runs no more."""
        killed = [arrival for _, _, arrival in self._running]
        self._running.clear()
        self.context_tokens = 0
        self.version += 1
        return killed

    def tokens_done(self, now_s: float) -> tuple[float, float]:
        """Generated ones and prompts', since the beginning."""
        self._advance(now_s)
        return self._generated_tokens, self._prompt_tokens

    def _advance(self, now_s: float) -> None:
        elapsed = now_s - self._now_s
        self._now_s = now_s
        num_running = len(self._running)
        if not num_running:
            self._pause_s = 0.0
            return
        paused = min(elapsed, self._pause_s)
        self._pause_s -= paused
        tokens = (elapsed - paused) / self._model.step_s(num_running)
        self._virtual_tokens += tokens
        self._generated_tokens += tokens * num_running
        self._prompt_tokens += paused * self._model.prefill_tokens_per_s
