"""How long the CPU engine's steps take: measured, or as stored; a line through them, and its error.

    python -m benchmarks.routing_steps [--store]

Decoding: so many short prompts at once, the time between two tokens of the one that comes last.
Prefill: one prompt, the time to its first token.  Each the shortest of some tries: other programs
only ever make it longer.  The line is the least squares of relative errors.
"""

import argparse
import asyncio
import os
import platform
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.replica_process import replica
from benchmarks.routing_fleet import StepTimes
from benchmarks.sse_client import Timed, stream_completion

MODEL = "SmolLM2-135M-Instruct"
PATH = Path(__file__).with_name("routing_steps.json")
CHUNK_TOKENS = 128  # of a prompt, in one step, as on CPUs by default
DECODING, PROMPTS = (1, 4, 16), (128, 384, 1_024)
NUM_TRIES, ANSWER_TOKENS = 3, 24
_TOKEN_IDS = range(1_000, 40_000)
_SHORT_TOKENS = 4


class Measured(msgspec.Struct, frozen=True):
    num_prefilled: int  # in all of its steps
    num_decoding: int
    num_steps: int
    seconds: float

    def told_s(self, times: StepTimes) -> float:
        """By the line."""
        more_steps_s = (self.num_steps - 1) * times.step_s
        return times.duration_s(self.num_prefilled, self.num_decoding) + more_steps_s


class Steps(msgspec.Struct, frozen=True):
    times: StepTimes
    provenance: str
    measured: tuple[Measured, ...]

    def lines(self) -> Sequence[str]:
        worst = max(abs(row.told_s(self.times) / row.seconds - 1) for row in self.measured)
        times = self.times
        return [
            f"A step: {times.step_s * 1e3:.2f} ms, {times.prefill_s * 1e3:.3f} a prompt token, "
            f"{times.decode_s * 1e3:.2f} a sequence; at most {worst:.0%} off what was measured.",
            f"Measured: {self.provenance}.\n",
        ]

    def table(self) -> Sequence[str]:
        rows = ["| prompt tokens | sequences | ms | by the line | error |", "|---|---|---|---|---|"]
        for row in self.measured:
            told_s = row.told_s(self.times)
            rows.append(
                f"| {row.num_prefilled} | {row.num_decoding} | {row.seconds * 1e3:.1f} "
                f"| {told_s * 1e3:.1f} | {told_s / row.seconds - 1:+.0%} |"
            )
        return rows


def stored_steps() -> Steps:
    return msgspec.json.decode(PATH.read_bytes(), type=Steps)


def measured_steps() -> Steps:
    with replica(model=MODEL, max_num_batched_tokens=CHUNK_TOKENS, precision="fast") as server:
        measured = tuple(asyncio.run(_measure(server.url)))
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    provenance = f"{MODEL}, fast, {where}, {datetime.now(UTC):%Y-%m-%d}"
    return Steps(line_through(measured), provenance, measured)


def line_through(measured: Sequence[Measured]) -> StepTimes:
    rows = [(m.num_steps, m.num_prefilled, m.num_decoding) for m in measured]
    seconds = np.array([m.seconds for m in measured])
    relative = np.array(rows) / seconds[:, None]
    solution, *_ = np.linalg.lstsq(relative, np.ones(len(rows)), rcond=None)
    return StepTimes(*(max(0.0, float(value)) for value in solution))


async def _measure(url: str) -> list[Measured]:
    source = random.Random(1)

    async def ask(num_tokens: int, max_tokens: int) -> Timed:
        """Nothing of it is cached."""
        prompt = source.choices(_TOKEN_IDS, k=num_tokens)
        return await stream_completion(url, "", MODEL, prompt, max_tokens)

    async def decoding_s(num: int) -> float:
        asked = [ask(_SHORT_TOKENS, ANSWER_TOKENS) for _ in range(num)]
        last = max(await asyncio.gather(*asked), key=lambda timed: timed.ttft_s)
        return (last.total_s - last.ttft_s) / (last.completion_tokens - 1)

    async def prefilling_s(num_tokens: int) -> float:
        return (await ask(num_tokens, 1)).ttft_s

    await decoding_s(1)  # and warms it up
    measured = []
    for num in DECODING:
        seconds = min([await decoding_s(num) for _ in range(NUM_TRIES)])
        measured.append(Measured(0, num, 1, seconds))
    for num in PROMPTS:
        seconds = min([await prefilling_s(num) for _ in range(NUM_TRIES)])
        measured.append(Measured(num, 0, -(-num // CHUNK_TOKENS), seconds))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="store_true", help=f"in {PATH.name}")
    options = parser.parse_args()
    steps = measured_steps()
    for line in (*steps.lines(), *steps.table()):
        print(line)
    if options.store:
        PATH.write_bytes(msgspec.json.format(msgspec.json.encode(steps), indent=2) + b"\n")


if __name__ == "__main__":
    main()
