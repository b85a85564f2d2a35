"""How long a client waits when the replica of its stream is lost, and whether it can tell.

    python -m benchmarks.faults [--streams 60] [--tokens 64]

A gateway in this process, before one real replica with a tiny model that it takes for two; wires
between them are cut at a random token, after an event or within one.  The time is from the cut to
the first byte that the client gets behind it: noticing, choosing, connecting, and the prefill.
With a model of use the last of these is what a prefill takes there.  A replica that falls silent
without closing is noticed after GATEWAY_IDLE_TIMEOUT_S.
"""

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import RecordedTransport
from tests.gateway.test_survival import Fleet, fleet_of, new_replica
from tests.replica.tiny_hf import save_tiny_model


class TimedTransport(RecordedTransport):
    def __init__(self) -> None:
        super().__init__()
        self.written_monotonic_s: list[float] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.written_monotonic_s.append(time.monotonic())


def percentile(values: Sequence[float], ratio: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(ratio * len(ordered)) - 1)]


def body_of(number: int, num_tokens: int) -> dict[str, object]:
    prompt = f"prompt {number}"
    return {"prompt": prompt, "temperature": 1.0, "seed": number, "max_tokens": num_tokens}


async def recovery_s(fleet: Fleet, body: dict[str, object], cut_after: int) -> tuple[float, bool]:
    """From the cut to the next byte; whether the answer is that of an undisturbed run."""
    whole = await fleet.stream(body)
    fleet.cuts.made_monotonic_s.clear()
    transport = TimedTransport()
    cut = await fleet.ask(body | {"cut_after": [cut_after]}, transport)
    (cut_s,) = fleet.cuts.made_monotonic_s
    resumed_s = fleet.cuts.begun_monotonic_s[-1]
    next_s = next(at for at in transport.written_monotonic_s if at > resumed_s)
    return next_s - cut_s, cut.answer == whole.answer and cut.is_whole


async def measure(fleet: Fleet, options: argparse.Namespace) -> bool:
    random = Random(1)
    print(f"{'cut':<16}{'streams':>8}{'same':>6}{'p50 ms':>9}{'p95 ms':>9}{'max ms':>9}")
    all_same = True
    for fleet.cuts.is_mid_event in (False, True):
        results = [
            await recovery_s(
                fleet, body_of(number, options.tokens), random.randrange(1, options.tokens - 2)
            )
            for number in range(options.streams)
        ]
        times_ms = [seconds * 1e3 for seconds, _ in results]
        num_same = sum(is_same for _, is_same in results)
        name = "within an event" if fleet.cuts.is_mid_event else "after an event"
        shown = "".join(f"{percentile(times_ms, ratio):9.1f}" for ratio in (0.5, 0.95, 1.0))
        print(f"{name:<16}{len(results):>8}{num_same:>6}{shown}")
        all_same = all_same and num_same == len(results)
    return all_same


async def run(options: argparse.Namespace, folder: Path) -> bool:
    save_tiny_model(folder / "tiny", context_length=1024)
    valkey = Valkey(folder)
    valkey.start()
    try:
        with new_replica(folder, folder / "tiny") as replica:
            await asyncio.to_thread(replica.wait_ready)
            policies = Policies(folder / "policy.json")
            async with fleet_of(folder, valkey, policies, replica, replica) as fleet:
                return await measure(fleet, options)
    finally:
        valkey.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(run(parser.parse_args(), Path(folder))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
