"""What asking twice takes off the slowest first tokens, and what it costs.

    python -m benchmarks.hedging [--seconds 30] [--per-second 20] [--pause-s 0.5] [--every-s 5]

Before two servers that take an engine's time (``benchmarks.engine_stand_in``), one of which stands
still for a moment every few seconds: ``pandal bench`` offers the same load by tenants without
hedging, with a delay that the gateway learns, and with one that is given.
"""

import argparse
import json
import re
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bench_process import bench
from benchmarks.engine_stand_in import engine_stand_in
from contracts.hedging import HedgePolicy
from contracts.metrics import GATEWAY_HEDGES
from tests.gateway.processes import Gateway, Policies, Valkey

NO_LIMIT = {"tokens_per_minute": 100_000_000, "requests_per_minute": 1_000_000}
GIVEN_MS = 100
TENANTS = {
    "none": None,
    "learned": HedgePolicy(),
    f"{GIVEN_MS} ms": HedgePolicy(after_ms=GIVEN_MS),
}


def hedges(url: str) -> tuple[int, int]:
    """Second attempts that won, and that lost."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()

    def count(outcome: str) -> int:
        found = re.search(rf'^{GATEWAY_HEDGES}{{outcome="{outcome}"}} (\S+)$', text, re.MULTILINE)
        return 0 if found is None else int(float(found[1]))

    return count("won"), count("lost")


def row(url: str, name: str, key: str, given: argparse.Namespace) -> None:
    what = "--workload lognormal --prompt-tokens 100 --output-tokens 16"
    load = f"--rate {given.per_second} --duration-s {given.seconds}"
    before = hedges(url)
    total = bench(url, key, f"{what} {load}".split()).total
    won, lost = (after - b for after, b in zip(hedges(url), before, strict=True))
    ttft_s = total.latency.ttft_s
    assert ttft_s is not None, "nothing was served"
    times_ms = (ttft_s.p50 * 1e3, ttft_s.p95 * 1e3, ttft_s.p99 * 1e3, ttft_s.max * 1e3)
    print(
        f"{name:<10}{total.num_requests:>9}{total.outcomes.get('completed', 0):>8}"
        f"{''.join(f'{ms:>8.0f}' for ms in times_ms)}"
        f"{100 * (won + lost) / total.num_requests:>9.1f} %{won:>6}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row")
    parser.add_argument("--per-second", type=float, default=20.0)
    parser.add_argument("--pause-s", type=float, default=0.5)
    parser.add_argument("--every-s", type=float, default=5.0)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [
            stack.enter_context(engine_stand_in()),
            stack.enter_context(engine_stand_in(given.pause_s, given.every_s)),
        ]
        valkey, policies = Valkey(folder), Policies(folder / "policy.json")
        for number, policy in enumerate(TENANTS.values()):
            policies.add(f"t{number}", f"sk-{number}", hedging=policy, **NO_LIMIT)
        replicas = [{"name": f"replica-{n}", "url": url} for n, url in enumerate(urls)]
        gateway = Gateway(
            folder,
            quota_url=valkey.url,
            policy_file=policies.path,
            upstreams={},
            GATEWAY_REPLICAS=json.dumps(replicas),
        )
        valkey.start()
        stack.callback(valkey.stop)
        gateway.start()
        stack.callback(gateway.stop)
        print("hedging    requests  served  TTFT p50 ms, p95, p99, max  asked twice  won")
        for number, name in enumerate(TENANTS):
            row(f"http://127.0.0.1:{gateway.port}", name, f"sk-{number}", given)


if __name__ == "__main__":
    main()
