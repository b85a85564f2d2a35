"""What deciding and accounting cost per step, with a full house decoding and others waiting.

    python benchmarks/scheduler_cost.py [--waiting 1000] [--steps 48] [--repeats 3]

No model runs: every step's tokens are given.  Prompts differ, so nothing is shared; their lengths
differ by up to a block, so in every step some blocks become full and are hashed and published.
Every tenant runs as many as any other, so nobody is displaced, though everybody is looked at.  The
garbage collector stays on, as it does in service.  It is the processor's time that is measured, and
the best of some repeats that is shown: others on the machine cost neither.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from kernels.paged_attention.plan import pad_block_tables
from replica.engine.batch import flatten
from replica.engine.block_manager import BlockManager
from replica.engine.messages import SamplingParams
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.engine.sequence import Prompt, Sequence, Standing
from replica.engine.step import SampledToken

BLOCK_SIZE = 16
NUM_TENANTS = 8
NUM_RUNNING = (16, 64, 256, 1024)
CONTEXT_TOKENS = (128, 1024, 4096)
MOST_TOKENS = 1 << 21  # in all: beyond, the lists of tokens alone fill the memory
TOKEN = SampledToken(5, is_finite=True)
PARAMS = SamplingParams(max_tokens=1000, ignore_eos=True)
PARTS = ("schedule", "update", "flatten", "tables")


class Stopwatch:
    def __init__(self) -> None:
        self.durations_ms: dict[str, list[float]] = {part: [] for part in PARTS}

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        started_at_s = time.process_time()
        yield
        self.durations_ms[part].append(1000 * (time.process_time() - started_at_s))

    def medians_ms(self) -> list[float]:
        return [median(self.durations_ms[part]) for part in PARTS]

    def worst_ms(self) -> float:
        """Of deciding and accounting together."""
        own = zip(self.durations_ms["schedule"], self.durations_ms["update"], strict=True)
        return max(map(sum, own))


def full_house(num_running: int, context_tokens: int, num_waiting: int) -> Scheduler:
    num_blocks = 2 + num_running * (-(-(context_tokens + PARAMS.max_tokens) // BLOCK_SIZE) + 1)
    limits = SchedulerLimits(BLOCK_SIZE, num_running, num_running * (context_tokens + BLOCK_SIZE))
    scheduler = Scheduler(limits, BlockManager(num_blocks), [])
    identity = PrefixIdentity("benchmark", "float32")
    for arrival in range(num_running + num_waiting):
        tenant = f"tenant {arrival % NUM_TENANTS}"
        length = context_tokens + arrival % BLOCK_SIZE
        scheduler.add(
            Sequence(
                sequence_id=arrival,
                standing=Standing(arrival, tenant, 0, float(arrival)),
                prompt=Prompt([arrival % 251, arrival // 251, *[7] * (length - 2)]),
                params=PARAMS,
                root=identity.root(tenant),
            )
        )
        if arrival == num_running - 1:
            step(scheduler, Stopwatch())
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (
        num_running,
        num_waiting,
    )
    return scheduler


def step(scheduler: Scheduler, stopwatch: Stopwatch) -> None:
    with stopwatch.timing("schedule"):
        chunks = scheduler.schedule(0.0)
    with stopwatch.timing("flatten"):
        batch = flatten(chunks, BLOCK_SIZE)
    with stopwatch.timing("tables"):
        pad_block_tables(batch.segments)
    with stopwatch.timing("update"):
        scheduler.retire()
        for chunk in chunks:
            scheduler.update(chunk, TOKEN)


def measure(num_running: int, context_tokens: int, num_waiting: int, num_steps: int) -> Stopwatch:
    scheduler = full_house(num_running, context_tokens, num_waiting)
    stopwatch = Stopwatch()
    for _ in range(num_steps):
        step(scheduler, stopwatch)
    assert not scheduler.stats().num_preemptions, "what was measured is more than decoding"
    return stopwatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.waiting} waiting; ms of CPU per step, medians of {options.steps}; ", end="")
    print("worst: of the sum; flatten and tables: what makes the batch")
    print("running  context  schedule  update  schedule+update  worst  flatten  tables")
    for num_running, context_tokens in ((n, c) for n in NUM_RUNNING for c in CONTEXT_TOKENS):
        if num_running * context_tokens > MOST_TOKENS:
            continue
        watches = [
            measure(num_running, context_tokens, options.waiting, options.steps)
            for _ in range(options.repeats)
        ]
        parts = zip(*(watch.medians_ms() for watch in watches), strict=True)
        schedule_ms, update_ms, flatten_ms, tables_ms = map(min, parts)
        worst_ms = min(watch.worst_ms() for watch in watches)
        print(
            f"{num_running:7d}  {context_tokens:7d}  {schedule_ms:8.3f}  {update_ms:6.3f}"
            f"  {schedule_ms + update_ms:15.3f}  {worst_ms:5.2f}  {flatten_ms:7.3f}"
            f"  {tables_ms:6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
