"""What the load report and the block events cost, beside the steps they tell of.

    python -m benchmarks.report_cost [--model NAME] [--backend compiled]

Steps are timed through the engine's own runner; reports are those of its own scheduler in the same
situation: 16 sequences decoding (a block filled now and then), or a prompt of 512 tokens for which
32 cached blocks give way.  A report's cost is everything between the engine's counters and a
router's socket: counting, encoding, decoding in the HTTP process, the mirror with one follower, and
one answer to a poll of the load with every step.
"""

import argparse
import statistics
import time
from pathlib import Path

import msgspec

from benchmarks.preemption_crossover import BLOCK_SIZE, chunk
from contracts.load import ReplicaLoad
from replica.engine.backend import choose_backend
from replica.engine.batch import FlatBatch, SampledRow, Segment
from replica.engine.block_manager import BlockManager
from replica.engine.block_mirror import BlockMirror, Subscription
from replica.engine.launcher import ModelRunner
from replica.engine.messages import (
    LENGTH_PREFIX_BYTES,
    CpuBackend,
    EngineStats,
    SamplingParams,
    StepReport,
    decode_from_engine,
    encode_frame,
)
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import Scheduler, SchedulerLimits
from replica.engine.sequence import Prompt, Standing
from replica.engine.sequence import Sequence as EngineSequence
from replica.engine.step import SampledToken
from replica.model import store
from replica.model.loader import open_model
from replica.settings import Settings

NUM_SEQS = 16
PROMPT_TOKENS = 512
GREEDY = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
ROUNDS = 9


def decode_step(runner: ModelRunner) -> float:
    """Seconds of a step of NUM_SEQS sequences behind the same 256 tokens."""
    table = tuple(range(1, 18))
    segments = [Segment(row, 1, 256, (*table[:16], 20 + row)) for row in range(NUM_SEQS)]
    slots = [(20 + row) * BLOCK_SIZE for row in range(NUM_SEQS)]
    sampled = [SampledRow(row, GREEDY, 257, False) for row in range(NUM_SEQS)]
    batch = FlatBatch([5] * NUM_SEQS, [256] * NUM_SEQS, slots, segments, sampled)
    return median_s(lambda: runner.execute(batch))


def median_s(work: object) -> float:
    assert callable(work)
    durations = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started_s)
    return statistics.median(durations)


class Reporting:
    def __init__(self, num_blocks: int) -> None:
        limits = SchedulerLimits(BLOCK_SIZE, NUM_SEQS, PROMPT_TOKENS)
        self._scheduler = Scheduler(limits, BlockManager(num_blocks), [])
        self._root = PrefixIdentity("benchmark", "float32").root("")
        self._mirror = BlockMirror()
        self._num_submitted = 0

    def submit(self, num_tokens: int, max_tokens: int) -> None:
        """A prompt that no other begins with."""
        self._num_submitted += 1
        prompt = [self._num_submitted, *range(1, num_tokens)]
        self._scheduler.add(
            EngineSequence(
                sequence_id=self._num_submitted,
                standing=Standing(self._num_submitted, "tenant", 0, 0.0),
                prompt=Prompt(prompt),
                params=msgspec.structs.replace(GREEDY, max_tokens=max_tokens),
                root=self._root,
            )
        )

    def step(self, follower: Subscription) -> float:
        """Seconds that telling of it took."""
        chunks = self._scheduler.schedule(0.0)
        self._scheduler.retire()
        for each in chunks:
            token = SampledToken(7, is_finite=True) if each.is_sampled else None
            self._scheduler.update(each, token)
        self._scheduler.take_kv_operations()
        started_s = time.perf_counter()
        report = StepReport(
            deltas=[],
            stats=self._scheduler.stats(),
            num_batched_tokens=sum(each.num_tokens for each in chunks),
            block_changes=self._scheduler.take_block_changes(),
            preempted=self._scheduler.take_preempted(),
        )
        told = decode_from_engine(encode_frame(report)[LENGTH_PREFIX_BYTES:])
        assert isinstance(told, StepReport)
        self._mirror.apply(told.block_changes)
        while not follower.changes.empty():
            follower.changes.get_nowait()
        msgspec.json.encode(load(told.stats))
        return time.perf_counter() - started_s

    def decoding(self) -> float:
        """Mean over many steps: only some of them fill blocks."""
        with self._mirror.subscribe() as follower:
            for _ in range(NUM_SEQS):
                self.submit(32, 200)
            for _ in range(5):
                self.step(follower)
            return statistics.fmean(self.step(follower) for _ in range(150))

    def prefilling(self) -> float:
        """Each prompt fills the pool and pushes the one before out."""
        with self._mirror.subscribe() as follower:
            durations = []
            for _ in range(20):
                self.submit(PROMPT_TOKENS, 1)
                durations.append(self.step(follower))
            return statistics.fmean(durations[5:])


def load(stats: EngineStats) -> ReplicaLoad:
    return ReplicaLoad(
        model="benchmark",
        is_ready=True,
        is_draining=False,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        queued_prompt_tokens=stats.queued_prompt_tokens,
        expected_output_tokens=stats.expected_output_tokens,
        kv_cache_usage=stats.num_used_blocks / stats.num_usable_blocks,
        num_kv_blocks=stats.num_usable_blocks,
        block_size=BLOCK_SIZE,
        prefill_tokens_per_s=stats.prefill_tokens_per_s,
        decode_tokens_per_s=stats.decode_tokens_per_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cache-dir", type=Path, default=Settings().model_cache_dir)
    parser.add_argument("--backend", type=CpuBackend, default=CpuBackend.COMPILED)
    arguments = parser.parse_args()
    path = store.resolve(arguments.model, arguments.cache_dir, lambda ratio: None)
    settings = Settings(
        cpu_backend=arguments.backend, block_size=BLOCK_SIZE, max_num_batched_tokens=PROMPT_TOKENS
    )
    backend = choose_backend(settings.engine_config(), open_model(path), [])
    runner = backend.load(64, lambda ratio, detail: None)
    prefill_s = median_s(lambda: runner.execute(chunk(0, PROMPT_TOKENS)))
    rows = {
        f"decode, {NUM_SEQS} sequences": (decode_step(runner), Reporting(1000).decoding()),
        f"prefill, {PROMPT_TOKENS} tokens": (prefill_s, Reporting(34).prefilling()),
    }
    print(f"{arguments.model}, {backend.description}")
    print("\n| step | step ms | report µs | share |\n|---|---|---|---|")
    for name, (step_s, report_s) in rows.items():
        print(f"| {name} | {step_s * 1e3:.1f} | {report_s * 1e6:.0f} | {report_s / step_s:.2%} |")


if __name__ == "__main__":
    main()
