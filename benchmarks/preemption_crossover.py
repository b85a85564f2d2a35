"""What a preempted sequence costs by the length of its context: recomputed, or swapped.

    python -m benchmarks.preemption_crossover [--model NAME] [--backend compiled] [--rounds 3]

Recomputing is the prefill of the context in chunks of 512 tokens; swapping copies its blocks to
host memory when it gives way and back when it goes on.  Medians of rounds, through the engine's own
runner.
"""

import argparse
import statistics
import time
from pathlib import Path

from replica.engine.backend import choose_backend
from replica.engine.batch import FlatBatch, Segment
from replica.engine.kv_blocks import KvOptions
from replica.engine.kv_operations import CopyIn, CopyOut
from replica.engine.launcher import ModelRunner
from replica.engine.memory_plan import kv_bytes_per_token
from replica.engine.messages import CpuBackend
from replica.model import store
from replica.model.loader import open_model
from replica.settings import Settings

BLOCK_SIZE = 16
CHUNK_TOKENS = 512
CONTEXTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
NUM_BLOCKS = CONTEXTS[-1] // BLOCK_SIZE


def chunk(start: int, num_tokens: int) -> FlatBatch:
    """Of a sequence whose blocks are 1, 2, and so on."""
    end = start + num_tokens
    table = tuple(range(1, 1 + -(-end // BLOCK_SIZE)))
    slots = range(BLOCK_SIZE + start, BLOCK_SIZE + end)
    tokens = [1 + position % 1000 for position in range(start, end)]
    return FlatBatch(tokens, range(start, end), slots, [Segment(0, num_tokens, start, table)], [])


def seconds_to_recompute(runner: ModelRunner, num_tokens: int) -> float:
    started_s = time.perf_counter()
    for start in range(0, num_tokens, CHUNK_TOKENS):
        runner.execute(chunk(start, min(CHUNK_TOKENS, num_tokens - start)))
    return time.perf_counter() - started_s


def seconds_to_swap(runner: ModelRunner, num_tokens: int) -> float:
    """Out, and back to other blocks; less what the empty step costs by itself."""
    blocks = range(1, 1 + num_tokens // BLOCK_SIZE)
    out = [CopyOut(block, block - 1) for block in blocks]
    back = [CopyIn(block - 1, NUM_BLOCKS + block) for block in blocks]
    started_s = time.perf_counter()
    runner.execute(FlatBatch([], [], [], [], [], out))
    runner.execute(FlatBatch([], [], [], [], [], back))
    swapped_s = time.perf_counter()
    runner.execute(FlatBatch([], [], [], [], []))
    runner.execute(FlatBatch([], [], [], [], []))
    return max(1e-6, 2 * swapped_s - started_s - time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cache-dir", type=Path, default=Settings().model_cache_dir)
    parser.add_argument("--backend", type=CpuBackend, default=CpuBackend.COMPILED)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    path = store.resolve(arguments.model, arguments.cache_dir, lambda ratio: None)
    settings = Settings(
        cpu_backend=arguments.backend, block_size=BLOCK_SIZE, max_num_batched_tokens=CHUNK_TOKENS
    )
    opened = open_model(path)
    backend = choose_backend(settings.engine_config(), opened, [])
    options = KvOptions(num_host_blocks=NUM_BLOCKS)
    runner = backend.load(1 + 2 * NUM_BLOCKS, lambda ratio, detail: None, options)
    token_bytes = kv_bytes_per_token(settings.engine_config(), opened.config)
    print(f"{arguments.model}, {backend.description}; {token_bytes} bytes of KV a token")
    runner.execute(chunk(0, CHUNK_TOKENS))  # warm
    seconds_to_swap(runner, CONTEXTS[-1])
    print("\n| context | recompute ms | swap ms | recompute : swap |\n|---|---|---|---|")
    crossover = None
    for num_tokens in CONTEXTS:
        rounds = range(arguments.rounds)
        recompute_s = statistics.median(seconds_to_recompute(runner, num_tokens) for _ in rounds)
        swap_s = statistics.median(seconds_to_swap(runner, num_tokens) for _ in rounds)
        if crossover is None and swap_s < recompute_s:
            crossover = num_tokens
        ratio = recompute_s / swap_s
        print(f"| {num_tokens} | {recompute_s * 1e3:.1f} | {swap_s * 1e3:.2f} | {ratio:.0f} |")
    print(f"\nSwapping is cheaper from a context of {crossover} tokens on (of those tried).")


if __name__ == "__main__":
    main()
