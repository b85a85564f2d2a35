"""How much of the KV cache holds tokens: our blocks beside contiguous reservations.

    python -m benchmarks.kv_utilization [--requests 600] [--pool-tokens 32768] [--seed 0]

The paged row drives the engine's own scheduler and block manager; the contiguous ones reserve,
first fit, a range per request as Orca does in Kwon et al. 2023 (SOSP, figure 2): up to the longest
context, up to the next power of two of the answer, or exactly what it will need.  One backlogged
workload of log-normal prompts and answers, a token a step for each running request; utilisation is
averaged over the steps in which somebody waits.  No model runs: only lengths matter here.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replica.engine.block_manager import BlockManager
from replica.engine.messages import SamplingParams
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.engine.sequence import Prompt, Standing
from replica.engine.sequence import Sequence as EngineSequence
from replica.engine.step import SampledToken

MAX_MODEL_LEN = 2048
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
EOS = 0


@dataclass(frozen=True, slots=True)
class Request:
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Result:
    of_pool: float  # tokens held, of all that the pool could hold
    of_reserved: float  # tokens held, of what is handed out
    num_running: float
    num_steps: int


class Samples:
    def __init__(self, pool_tokens: int) -> None:
        self._pool_tokens = pool_tokens
        self._rows: list[tuple[float, float, int]] = []

    def note(self, held: int, reserved: int, num_running: int) -> None:
        if reserved:
            self._rows.append((held / self._pool_tokens, held / reserved, num_running))

    def result(self, num_steps: int) -> Result:
        of_pool, of_reserved, running = zip(*self._rows, strict=True)
        return Result(
            statistics.fmean(of_pool),
            statistics.fmean(of_reserved),
            statistics.fmean(running),
            num_steps,
        )


def workload(num_requests: int, seed: int) -> list[Request]:
    """Means near ShareGPT's 161 and 338 tokens in the paper's table."""
    rng = random.Random(seed)

    def length(median: float, spread: float) -> int:
        return min(MAX_MODEL_LEN // 2, max(1, round(median * rng.lognormvariate(0.0, spread))))

    return [Request(length(90, 1.0), length(240, 0.8)) for _ in range(num_requests)]


def paged(requests: Sequence[Request], pool_tokens: int) -> Result:
    limits = SchedulerLimits(BLOCK_SIZE, MAX_NUM_SEQS, 2048, is_prefix_caching=False)
    scheduler = Scheduler(limits, BlockManager(1 + pool_tokens // BLOCK_SIZE), [EOS])
    root = PrefixIdentity("benchmark", "float32").root("")
    live: dict[int, EngineSequence] = {}
    for index, request in enumerate(requests):
        live[index] = EngineSequence(
            sequence_id=index,
            standing=Standing(index, "tenant", 0, 0.0),
            prompt=Prompt([1] * request.num_prompt),
            params=SamplingParams(max_tokens=MAX_MODEL_LEN - request.num_prompt),
            root=root,
        )
        scheduler.add(live[index])
    samples, num_steps = Samples(pool_tokens), 0
    while scheduler.has_work:
        num_steps += 1
        chunks = scheduler.schedule(0.0)
        scheduler.retire()
        for chunk in chunks:
            sequence = chunk.sequence
            is_last = (
                sequence.num_completion_tokens + 1 == requests[sequence.sequence_id].num_output
            )
            token = SampledToken(EOS if is_last else 1, is_finite=True)
            scheduler.update(chunk, token if chunk.is_sampled else None)
            if sequence.finish_reason is not None:
                del live[sequence.sequence_id]
        scheduler.take_kv_operations()
        stats = scheduler.stats()
        if stats.num_waiting:
            held = sum(s.num_computed_tokens for s in live.values() if s.is_running)
            samples.note(held, stats.num_used_blocks * BLOCK_SIZE, stats.num_running)
    return samples.result(num_steps)


class Ranges:
    """First fit over a line of tokens."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # (start, size), in order

    def take(self, size: int) -> int | None:
        for index, (start, free) in enumerate(self._free):
            if free >= size:
                self._free[index : index + 1] = [(start + size, free - size)] * (free > size)
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for place, length in sorted([*self._free, (start, size)]):
            if merged and sum(merged[-1]) == place:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((place, length))
        self._free = merged


def contiguous(
    requests: Sequence[Request], pool_tokens: int, reservation: Callable[[Request], int]
) -> Result:
    ranges, samples, num_steps = Ranges(pool_tokens), Samples(pool_tokens), 0
    waiting = list(reversed(requests))
    running: list[tuple[Request, int, int, int]] = []  # request, start, reserved, tokens held
    while waiting or running:
        num_steps += 1
        while waiting and len(running) < MAX_NUM_SEQS:
            reserved = reservation(waiting[-1])
            start = ranges.take(reserved)
            if start is None:
                break
            request = waiting.pop()
            running.append((request, start, reserved, request.num_prompt - 1))
        running = [(r, start, size, held + 1) for r, start, size, held in running]
        for request, start, size, held in running:
            if held == request.num_prompt + request.num_output:
                ranges.give_back(start, size)
        running = [row for row in running if row[3] < row[0].num_prompt + row[0].num_output]
        if waiting:
            held = sum(row[3] for row in running)
            samples.note(held, sum(row[2] for row in running), len(running))
    return samples.result(num_steps)


def power_of_two(request: Request) -> int:
    return min(MAX_MODEL_LEN, request.num_prompt + (1 << (request.num_output - 1).bit_length()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--pool-tokens", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    requests, pool = workload(arguments.requests, arguments.seed), arguments.pool_tokens
    prompts, outputs = zip(*((r.num_prompt, r.num_output) for r in requests), strict=True)
    print(
        f"{len(requests)} requests, on average {statistics.fmean(prompts):.0f} prompt tokens and "
        f"{statistics.fmean(outputs):.0f} of answer; {pool} tokens of pool, {BLOCK_SIZE} a block"
    )
    rows = {
        "contiguous, longest context": (
            contiguous(requests, pool, lambda request: MAX_MODEL_LEN),
            "20.4",
        ),
        "contiguous, power of two": (contiguous(requests, pool, power_of_two), "26.8"),
        "contiguous, oracle": (
            contiguous(requests, pool, lambda r: r.num_prompt + r.num_output),
            "38.2",
        ),
        "paged": (paged(requests, pool), "96.3"),
    }
    print("\n| way | tokens of pool | of reserved | running | steps | paper |")
    print("|---|---|---|---|---|---|")
    for name, (result, published) in rows.items():
        print(
            f"| {name} | {result.of_pool:.1%} | {result.of_reserved:.1%} "
            f"| {result.num_running:.1f} | {result.num_steps} | {published} % |"
        )


if __name__ == "__main__":
    main()
