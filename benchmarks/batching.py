"""Static against continuous batching: one engine, one set of requests of mixed lengths.

    python -m benchmarks.batching [--requests 48] [--batch 8] [--mean-tokens 24] [--rounds 3]

It ends within --budget-s after the replica has started (which compiles its kernels, once): a round
that is not whole by then, on a machine with other work, is not counted.

The engine always runs as it is; the client holds it to static batches, so nothing in the product
knows of this.  Three ways, in turn:

- static: a batch is sent together, the next when the last of it is done, and every request asks for
  as many tokens as the longest of its batch.  That is what request-level batching computes: a row
  that has ended stays in the batch.  Only the tokens that were wanted count.
- waves: the same without the wasted rows, which is kinder than static batching ever was.
- continuous: everything is sent at once; the engine admits as rows become free.

Lengths are exponential with a cap (most answers are short, few are long), or uniform.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.replica_process import replica
from pandal.bench.answer import Answer, Outcome
from pandal.bench.client import Client
from pandal.bench.schedule import RequestStyle, body_of
from pandal.bench.target import Target, parse_target, request_head
from pandal.bench.text import words
from pandal.bench.workload import Message, Turn

MODEL = "SmolLM2-135M-Instruct"
PROMPT_TOKENS = 24
LONGEST_FACTOR = 8  # of the mean
TIMEOUT_S = 120.0  # of one answer: a machine that is shared is slow, one that hangs never ends
PUBLISHED = """
Published ratios, and what they compare:
- Orca: 36.9x the throughput of FasterTransformer at the same latency, GPT-3 175B.  Two systems:
  iteration-level scheduling, and another engine.  Yu et al., OSDI 2022,
  https://www.usenix.org/conference/osdi22/presentation/yu
- Anyscale: up to 23x (vLLM) over the static batches of Hugging Face's pipelines, OPT-13B on one
  A100 40GB, 1,000 requests, exponential lengths.  Continuous batching without vLLM's memory was 8x,
  static batches on a better engine (FasterTransformer) 4x.  Daniel et al., 2023,
  https://www.anyscale.com/blog/continuous-batching-llm-inference
- PagedAttention: 2-4x FasterTransformer and Orca at the same latency: memory, not batching.
  Kwon et al., SOSP 2023, https://arxiv.org/abs/2309.06180
Here only the batching differs: one engine, one memory, one number of rows.  What there is to win
is bounded by the lengths, the longest of a batch over the mean."""


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    tokens_per_s: float  # wanted ones
    mean_latency_s: float  # from the start of all, as if all had arrived then
    num_computed_tokens: int


Ask = Callable[[Asked, int], Awaitable[Answer]]
Way = Callable[[Ask, Sequence[Asked], int], Awaitable[list[float]]]


def exponential(rng: random.Random, mean_tokens: int) -> int:
    length = round(rng.expovariate(1 / mean_tokens))
    return max(1, min(length, mean_tokens * LONGEST_FACTOR))


def uniform(rng: random.Random, mean_tokens: int) -> int:
    return rng.randint(1, 2 * mean_tokens - 1)


LENGTHS: dict[str, Callable[[random.Random, int], int]] = {
    "exponential": exponential,
    "uniform": uniform,
}


def requests_of(load: argparse.Namespace, round_: int, way: str) -> list[Asked]:
    """The same lengths each time; other texts, though there is no prefix cache to help."""
    rng = random.Random(7)
    lengths = [LENGTHS[load.lengths](rng, load.mean_tokens) for _ in range(load.requests)]
    return [Asked(words(PROMPT_TOKENS, way, round_, n), length) for n, length in enumerate(lengths)]


def batches(asked: Sequence[Asked], batch: int) -> Iterator[Sequence[Asked]]:
    return (asked[start : start + batch] for start in range(0, len(asked), batch))


async def static(ask: Ask, asked: Sequence[Asked], batch: int) -> list[float]:
    """When each answer was there: in static batching, when its batch was."""
    ends_s: list[float] = []
    for together in batches(asked, batch):
        longest = max(one.num_tokens for one in together)
        await asyncio.gather(*(ask(one, longest) for one in together))
        ends_s += [time.perf_counter()] * len(together)
    return ends_s


async def waves(ask: Ask, asked: Sequence[Asked], batch: int) -> list[float]:
    ends_s: list[float] = []
    for together in batches(asked, batch):
        answers = await asyncio.gather(*(ask(one, one.num_tokens) for one in together))
        ends_s += [answer.ended_s for answer in answers if answer.ended_s is not None]
    return ends_s


async def continuous(ask: Ask, asked: Sequence[Asked], batch: int) -> list[float]:
    answers = await asyncio.gather(*(ask(one, one.num_tokens) for one in asked))
    return [answer.ended_s for answer in answers if answer.ended_s is not None]


WAYS: dict[str, Way] = {"static": static, "waves": waves, "continuous": continuous}


async def measure(target: Target, way: Way, asked: Sequence[Asked], batch: int) -> Measured:
    client = Client(target, time.perf_counter, max_connections=len(asked))
    head = request_head(target, None)
    style = RequestStyle(MODEL, is_exact_length=True)
    num_computed = 0

    async def ask(one: Asked, num_tokens: int) -> Answer:
        nonlocal num_computed
        turn = Turn((Message("user", one.prompt),), num_tokens)
        answer = await client.ask(head, body_of(turn, style), TIMEOUT_S)
        if answer.outcome is not Outcome.COMPLETED or answer.usage is None:
            raise RuntimeError(f"an answer was {answer.outcome}, status {answer.status}")
        num_computed += answer.usage.completion_tokens
        return answer

    started_s = time.perf_counter()
    ends_s = await way(ask, asked, batch)
    client.close()
    num_wanted = sum(one.num_tokens for one in asked)
    return Measured(
        tokens_per_s=num_wanted / (max(ends_s) - started_s),
        mean_latency_s=statistics.mean(ends_s) - started_s,
        num_computed_tokens=num_computed,
    )


def print_table(rows: dict[str, list[Measured]], asked: Sequence[Asked], batch: int) -> None:
    lengths = [one.num_tokens for one in asked]
    num_static = sum(len(b) * max(one.num_tokens for one in b) for b in batches(asked, batch))
    machine = platform.processor() or platform.machine()
    print(f"\n{machine}, {os.cpu_count()} cores, {MODEL}; {len(asked)} requests, {batch} rows")
    print(
        f"Answers of {min(lengths)} to {max(lengths)} tokens, mean {statistics.mean(lengths):.0f}; "
        f"a static batch computes {num_static / sum(lengths):.2f} for each one wanted."
    )
    print(f"Medians of {len(rows['static'])}.\n")
    base = statistics.median(row.tokens_per_s for row in rows["static"])
    print("| batching | tokens/s | over static | mean latency s | tokens computed |")
    print("|---|---|---|---|---|")
    for way, measured in rows.items():
        rate = statistics.median(row.tokens_per_s for row in measured)
        latency_s = statistics.median(row.mean_latency_s for row in measured)
        print(
            f"| {way} | {rate:.1f} | {rate / base:.2f} | {latency_s:.2f} | "
            f"{measured[0].num_computed_tokens} |"
        )
    print(PUBLISHED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--mean-tokens", type=int, default=24)
    parser.add_argument("--lengths", choices=LENGTHS, default="exponential")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=170.0)
    chosen = parser.parse_args()
    settings = {"model": MODEL, "max_num_seqs": chosen.batch, "max_num_waiting": 1024}
    say("starting a replica")
    with replica(**settings, is_prefix_caching=False) as server:
        rounds = asyncio.run(run_rounds(parse_target(server.url), chosen))
    if not rounds:
        sys.exit(f"no round ended within {chosen.budget_s:g} s: is the machine busy?")
    rows = {way: [round_[way] for round_ in rounds] for way in WAYS}
    print_table(rows, requests_of(chosen, 0, "static"), chosen.batch)


async def run_rounds(target: Target, chosen: argparse.Namespace) -> list[dict[str, Measured]]:
    """Those that were whole in time."""
    rounds: list[dict[str, Measured]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chosen.budget_s):
            while len(rounds) < chosen.rounds:
                rounds.append(await run_round(target, chosen, len(rounds)))
    return rounds


async def run_round(target: Target, chosen: argparse.Namespace, round_: int) -> dict[str, Measured]:
    """In the other order every second time."""
    found = {}
    for name in list(WAYS)[:: 1 if round_ % 2 == 0 else -1]:
        asked = requests_of(chosen, round_, name)
        found[name] = await measure(target, WAYS[name], asked, chosen.batch)
        rate = found[name].tokens_per_s
        say(f"round {round_ + 1} of {chosen.rounds}: {name}, {rate:.1f} tokens/s")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
