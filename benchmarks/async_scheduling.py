"""A replica with steps launched ahead beside one without: same model, same prompts, in turn.

    python -m benchmarks.async_scheduling [--rounds 3] [--tokens 48] [--streams 1 16 32]

Both replicas are up all the time and take turns; the one that waits does nothing.  The order
changes from round to round.  Quote medians and ratios: machines drift.
"""

import argparse
import asyncio
import statistics
from contextlib import ExitStack

from benchmarks.replica_process import replica
from benchmarks.sse_client import Timed, stream_completion

MODEL = "SmolLM2-135M-Instruct"
WAYS = ("off", "on")


async def one_turn(url: str, way: str, round_: int, num_streams: int, tokens: int) -> list[Timed]:
    """Different prompts in every turn: no prefix cache may help one of them."""
    prompts = (f"{way} {round_} {i} of {num_streams}: a story about" for i in range(num_streams))
    requests = (stream_completion(url, "", MODEL, prompt, tokens) for prompt in prompts)
    return await asyncio.gather(*requests)


def tokens_per_s(streams: list[Timed]) -> float:
    """Of all streams together, each by its own time between first token and end."""
    return sum(stream.decode_tokens_per_s for stream in streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 32])
    options = parser.parse_args()
    results: dict[tuple[int, str], list[list[Timed]]] = {}
    with ExitStack() as stack:
        servers = {
            way: stack.enter_context(replica(is_async_scheduling=way == "on")) for way in WAYS
        }
        for round_ in range(options.rounds + 1):  # the first one warms up
            for way in WAYS if round_ % 2 else reversed(WAYS):
                for num_streams in options.streams:
                    turn = one_turn(servers[way].url, way, round_, num_streams, options.tokens)
                    streams = asyncio.run(turn)
                    if round_:
                        results.setdefault((num_streams, way), []).append(streams)
    print("streams  async  decode tokens/s (median, range)  ttft ms (median)")
    for (num_streams, way), turns in sorted(results.items()):
        speeds = [tokens_per_s(turn) for turn in turns]
        ttft_ms = statistics.median(1000 * stream.ttft_s for turn in turns for stream in turn)
        print(
            f"{num_streams:7d}  {way:>5}  {statistics.median(speeds):8.1f}"
            f"  ({min(speeds):.1f} to {max(speeds):.1f})  {ttft_ms:8.1f}"
        )


if __name__ == "__main__":
    main()
