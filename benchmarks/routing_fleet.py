"""Replicas of a simulated fleet: real block caches, batched steps, on a virtual clock."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from contracts.load import ReplicaLoad

BLOCK_TOKENS = 64
CACHE_TOKENS = 48_000  # per replica: 2 GB of this model's keys and values in bfloat16
STEP_TOKENS = 256
MAX_RUNNING = 32


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of an engine; see ``routing_steps``."""

    step_s: float  # whatever is in it
    prefill_s: float  # each token of a prompt
    decode_s: float  # each sequence that has its prompt behind it

    def duration_s(self, num_prefilled: int, num_decoding: int) -> float:
        return self.step_s + self.prefill_s * num_prefilled + self.decode_s * num_decoding

    @property
    def usual_s(self) -> float:
        """Of a full step of a busy replica: arrivals are scaled by it."""
        return self.duration_s(STEP_TOKENS, 8)


class Timer(Protocol):
    def after(self, delay_s: float, call: Callable[[], None]) -> None: ...


class Clock:
    """Events in order of time; those of one time in the order in which they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num = 0

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        self._num += 1
        heapq.heappush(self._events, (time_s, self._num, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def run(self) -> None:
        while self._events:
            self.now_s, _, call = heapq.heappop(self._events)
            call()


@dataclass(slots=True, eq=False)
class Job:
    """One request at one replica."""

    blocks: Sequence[int]  # keys of its prompt's whole blocks, chained
    prompt_tokens: int
    output_tokens: int
    on_first: Callable[["Job"], None]
    on_end: Callable[["Job"], None]
    cached_tokens: int = 0
    num_left: int = 0  # tokens of its prompt
    num_generated: int = 0
    is_begun: bool = False

    @property
    def num_computed(self) -> int:
        """Of its prompt, cached ones included."""
        return self.prompt_tokens - self.num_left


@dataclass(slots=True, eq=False)
class BlockCache:
    """Least recently used goes first; a block's parent is never older than it."""

    capacity: int
    on_stored: Callable[[int, int], None]  # key, parent
    on_removed: Callable[[int], None]
    _held: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def num_cached(self, blocks: Sequence[int]) -> int:
        held = self._held
        low, high = 0, len(blocks)
        while low < high:  # whoever holds a block holds all before it
            middle = (low + high) // 2
            if blocks[middle] in held:
                low = middle + 1
            else:
                high = middle
        return low

    def store(self, blocks: Sequence[int]) -> None:
        parent = 0
        for key in blocks:
            if key not in self._held:
                self._held[key] = None
                self.on_stored(key, parent)
            parent = key
        for key in reversed(blocks):
            self._held.move_to_end(key)
        while len(self._held) > self.capacity:
            self.on_removed(self._held.popitem(last=False)[0])


class SimulatedReplica:
    def __init__(self, name: str, clock: Timer, cache: BlockCache, times: StepTimes) -> None:
        self.name = name
        self.cache = cache
        self._times = times
        self.is_dead = False
        self._clock = clock
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._is_stepping = False

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._is_stepping:
            self._is_stepping = True
            self._clock.after(0.0, self._step)

    def die(self) -> list[Job]:
        """Those that it leaves behind."""
        self.is_dead = True
        return [*self._running, *self._waiting]

    def load(self) -> tuple[int, int, int, int]:
        """Running, waiting, queued prompt tokens, tokens still to be generated."""
        prompts = sum(job.num_left if job.is_begun else job.prompt_tokens for job in self._jobs())
        outputs = sum(job.output_tokens - job.num_generated for job in self._jobs())
        return len(self._running), len(self._waiting), prompts, outputs

    @property
    def outstanding_tokens(self) -> int:
        _, _, prompts, outputs = self.load()
        return prompts + outputs

    def _jobs(self) -> list[Job]:
        return [*self._running, *self._waiting]

    def _admit(self) -> Job:
        """The first that waits.  What is cached of it is looked up now, as engines do."""
        job = self._waiting.popleft()
        cached = self.cache.num_cached(job.blocks) * BLOCK_TOKENS
        job.cached_tokens = min(cached, job.prompt_tokens - 1)
        job.num_left = job.prompt_tokens - job.cached_tokens
        job.is_begun = True
        self._running.append(job)
        return job

    def _step(self) -> None:
        if self.is_dead:
            return
        decoding = [job for job in self._running if job.num_left == 0]
        prefilling = list(self._prefill(STEP_TOKENS - len(decoding)))
        if not self._running:
            self._is_stepping = False
            return
        num_prefilled = sum(taken for _, taken in prefilling)
        duration_s = self._times.duration_s(num_prefilled, len(decoding))
        jobs = [job for job, _ in prefilling]
        self._clock.after(duration_s, lambda: self._retire(jobs, decoding))

    def _prefill(self, room: int) -> Iterator[tuple[Job, int]]:
        """Those that run, then those that wait, as long as there is room in the step."""
        begun = deque(job for job in self._running if job.num_left)
        while room > 0:
            if begun:
                job = begun.popleft()
            elif self._waiting and len(self._running) < MAX_RUNNING:
                job = self._admit()
            else:
                return
            taken = min(room, job.num_left)
            job.num_left -= taken
            room -= taken
            yield job, taken

    def _retire(self, prefilling: list[Job], decoding: list[Job]) -> None:
        if self.is_dead:
            return
        for job in prefilling:
            self.cache.store(job.blocks[: job.num_computed // BLOCK_TOKENS])
        through = [job for job in prefilling if job.num_left == 0]
        for job in through:
            job.on_first(job)
        for job in (*through, *decoding):
            job.num_generated += 1
            if job.num_generated >= job.output_tokens:
                self._running.remove(job)
                job.on_end(job)
        self._step()


def load_report(replica: SimulatedReplica, model: str) -> ReplicaLoad:
    running, waiting, prompts, outputs = replica.load()
    return ReplicaLoad(
        model=model, is_ready=True, is_draining=False, num_running=running, num_waiting=waiting,
        queued_prompt_tokens=prompts, expected_output_tokens=outputs, kv_cache_usage=0.0,
        num_kv_blocks=1, block_size=BLOCK_TOKENS, prefill_tokens_per_s=800.0,
        decode_tokens_per_s=300.0,
    )  # fmt: skip
